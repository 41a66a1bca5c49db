//! `permissions list | answer`.

use crate::api::client::encode;
use crate::cli::output::{CliResult, Out, age, name, table};
use crate::cli::session_arg::{SessionArg, resolve_name};
use crate::cli::{GlobalArgs, IdempotencyArgs, shell_completion};
use acp_core::api::{AnswerBody, Done, OptionView, PermissionView};
use acp_core::elicitation::parse_fields;
use acp_core::failure::Failure;
use acp_core::permission::kind_words;
use acp_core::render::form_lines;
use acp_shared::codes::Code;
use clap::Subcommand;

/// `permissions …`
#[derive(Debug, Subcommand)]
pub(crate) enum PermissionsCommand {
    /// List the pending permission requests of a session
    List {
        #[command(flatten)]
        session: SessionArg,
    },
    /// Answer a permission request or a question with one of its options, or a form with values
    Answer {
        /// Key, id or its first characters, or label
        #[arg(value_name = "SESSION", add = shell_completion::sessions())]
        session: String,
        /// Permission request, as shown by the list
        #[arg(add = shell_completion::permissions())]
        permission_id: String,
        /// Option to choose, or values of a form: FIELD=VALUE ...
        #[arg(required = true, value_name = "OPTION|FIELD=VALUE")]
        answer: Vec<String>,
        #[command(flatten)]
        once: IdempotencyArgs,
    },
}

/// `permissions …`
pub(crate) async fn run(global: &GlobalArgs, verb: PermissionsCommand, out: &mut Out) -> CliResult {
    let client = global.client()?;
    match verb {
        PermissionsCommand::List { session } => {
            let session = session.resolve(&client).await?;
            let path = format!("/v1/sessions/{}/permissions", encode(session.as_str()));
            let views: Vec<PermissionView> = client.get(&path).await?;
            out.show(&views, |views| list(views))
        }
        PermissionsCommand::Answer { session, permission_id, answer, once } => {
            let session = resolve_name(&session, &client).await?;
            let list = format!("/v1/sessions/{}/permissions", encode(session.as_str()));
            let body = match answer.as_slice() {
                [option] if !option.contains('=') => AnswerBody::of_option(option.clone()),
                words => {
                    let views: Vec<PermissionView> = client.get(&list).await?;
                    form_answer(&views, &permission_id, words)?
                }
            };
            let path = format!("{list}/{}", encode(&permission_id));
            let done: Done = client.post(&path, &body, &once.key()).await?;
            out.show(&done, |_| "Answered.".to_owned())
        }
    }
}

/// Reads words `FIELD=VALUE` as the answer to a pending form; a single word may be an option of a permission request.
fn form_answer(views: &[PermissionView], id: &str, words: &[String]) -> Result<AnswerBody, Failure> {
    let form = views.iter().find(|view| view.permission_id == id).and_then(|view| view.form.as_ref());
    match (form, words) {
        (Some(form), _) => {
            let content = parse_fields(form, words).map_err(|why| Failure::new(Code::Usage, why))?;
            Ok(AnswerBody::of_content(content))
        }
        (None, [option]) => Ok(AnswerBody::of_option(option.clone())),
        (None, _) => {
            let text = format!("{id} is not a pending form: give one option, or see `permissions list`");
            Err(Failure::new(Code::Usage, text))
        }
    }
}

fn list(views: &[PermissionView]) -> String {
    if views.is_empty() {
        return "No pending permission requests.".to_owned();
    }
    let rows = views.iter().map(|view| {
        let option = |option: &OptionView| {
            let kind = option.kind.as_deref().and_then(kind_words);
            // The options of an elicitation have names, and no kinds with words.
            let about = match (kind, &view.form) {
                (Some(kind), _) => kind.to_owned(),
                (None, Some(_)) => name(option.name.as_deref().unwrap_or_default()),
                (None, None) => "no kind".to_owned(),
            };
            format!("{} ({about})", option.option_id)
        };
        let options: Vec<String> = view.options.iter().map(option).collect();
        let subject = view.subject.clone().filter(|subject| *subject != view.title);
        let fields =
            view.form.as_ref().map(|form| form_lines(form, false).replace('\n', " ").trim().to_owned());
        let subject = subject.or(fields).unwrap_or_default();
        let since = age(view.created_at_ms);
        vec![view.permission_id.clone(), view.title.clone(), subject, options.join(", "), since]
    });
    table(&["PERMISSION", "TITLE", "DETAIL", "OPTIONS", "AGE"], rows)
}
