//! `permissions list | answer`.

use crate::api::client::encode;
use crate::cli::output::{CliResult, Out, age, table};
use crate::cli::{GlobalArgs, IdempotencyArgs};
use acp_core::api::{AnswerBody, Done, OptionView, PermissionView};
use acp_core::permission::kind_words;
use acp_shared::ids::SessionKey;
use clap::Subcommand;

/// `permissions …`
#[derive(Debug, Subcommand)]
pub(crate) enum PermissionsCommand {
    /// List the pending permission requests of a session
    List {
        /// The session
        session: SessionKey,
    },
    /// Answer a permission request with one of its options
    Answer {
        /// The session
        session: SessionKey,
        /// Permission request, as shown by the list
        permission_id: String,
        /// Option to choose
        option_id: String,
        #[command(flatten)]
        once: IdempotencyArgs,
    },
}

/// `permissions …`
pub(crate) async fn run(global: &GlobalArgs, verb: PermissionsCommand, out: &mut Out) -> CliResult {
    let client = global.client()?;
    match verb {
        PermissionsCommand::List { session } => {
            let path = format!("/v1/sessions/{}/permissions", encode(session.as_str()));
            let views: Vec<PermissionView> = client.get(&path).await?;
            out.show(&views, |views| list(views))
        }
        PermissionsCommand::Answer { session, permission_id, option_id, once } => {
            let (session, id) = (encode(session.as_str()), encode(&permission_id));
            let path = format!("/v1/sessions/{session}/permissions/{id}");
            let body = AnswerBody { option_id, by: None };
            let done: Done = client.post(&path, &body, &once.key()).await?;
            out.show(&done, |_| "Answered.".to_owned())
        }
    }
}

fn list(views: &[PermissionView]) -> String {
    if views.is_empty() {
        return "No pending permission requests.".to_owned();
    }
    let rows = views.iter().map(|view| {
        let option = |option: &OptionView| {
            let kind = option.kind.as_deref().and_then(kind_words).unwrap_or("no kind");
            format!("{} ({kind})", option.option_id)
        };
        let options: Vec<String> = view.options.iter().map(option).collect();
        let subject = view.subject.clone().filter(|subject| *subject != view.title).unwrap_or_default();
        let since = age(view.created_at_ms);
        vec![view.permission_id.clone(), view.title.clone(), subject, options.join(", "), since]
    });
    table(&["PERMISSION", "TITLE", "DETAIL", "OPTIONS", "AGE"], rows)
}
