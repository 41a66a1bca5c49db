//! Setup of a bot for `acp-gateway discord setup`: what Discord knows about the bot, and the person who posts a code.
//! Uses the client of the running adapter, and stores nothing.

use acp_discord::core::base_url::BaseUrl;
use acp_discord::core::errors::RejectionKind;
use acp_discord::core::event::Event;
use acp_discord::core::permissions::invite_url;
use acp_discord::rest::{RestClient, RestError, RestSettings};
use acp_discord::websocket::{self, EventReceiver};
use acp_shared::clock::Clock;
use acp_shared::redact::Secret;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Maximum number of waiting events.
const EVENTS_MAX: usize = 1_024;
/// Reaction as a sign that the code was read.
const SEEN: &str = "✅";
/// Maximum wait of that reaction for the rate limiter.
const REACTION_WAIT: Duration = Duration::from_secs(5);

/// Description of a token that is none.
pub(crate) const TOKEN_FORM: &str = "the token does not have the form of a bot token (three parts separated by dots): copy it \
                                     from the Developer Portal, Bot, Reset Token";

/// Bot as Discord describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BotProfile {
    /// Name of the bot's user.
    pub(crate) name: String,
    /// True if the Message Content intent is on.
    pub(crate) has_message_content: bool,
    /// Names of the servers that the bot is in.
    pub(crate) guilds: Vec<String>,
    /// Address at which a manager of a server adds the bot.
    pub(crate) invite_url: String,
}

/// Author of the message with the code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CodeAuthor {
    /// User id.
    pub(crate) id: String,
    /// Display name.
    pub(crate) name: String,
}

/// Client for the setup of one bot.
#[derive(Debug)]
pub(crate) struct BotSetup {
    rest: RestClient,
    token: Secret,
    base: BaseUrl,
}

impl BotSetup {
    /// Creates the client; `base_url` replaces Discord's own address.
    ///
    /// # Errors
    /// A sentence with the problem.
    pub(crate) fn new(token: Secret, base_url: Option<&str>, clock: Clock) -> Result<Self, String> {
        let base = base_url.map_or_else(BaseUrl::discord, BaseUrl::parse).map_err(|why| why.to_string())?;
        let rest = RestClient::new(RestSettings::new(base.clone(), token.clone(), clock));
        Ok(Self { rest: rest.map_err(|error| error.to_string())?, token, base })
    }

    /// Asks Discord about the bot.
    ///
    /// # Errors
    /// A sentence with the problem and the remedy.
    pub(crate) async fn profile(&self) -> Result<BotProfile, String> {
        let user = self.rest.bot_user().await.map_err(|fault| explain(&fault))?;
        let application = self.rest.application_object().await.map_err(|fault| explain(&fault))?;
        let guilds = self.rest.guilds().await.map_err(|fault| explain(&fault))?;
        Ok(BotProfile {
            name: user.username,
            has_message_content: application.has_message_content(),
            guilds: guilds.into_iter().map(|guild| guild.name).collect(),
            invite_url: invite_url(application.id),
        })
    }

    /// Connects, and waits until a person posts the code in a channel that the bot can read.
    ///
    /// # Errors
    /// A sentence with the problem and the remedy, if a connection is of no use.
    pub(crate) async fn wait_for_code(&self, code: &str) -> Result<CodeAuthor, String> {
        let (mut events, _guard) = self.connect();
        loop {
            match events.next().await {
                Some(Event::Message(message)) => {
                    let is_person = !message.author.user.bot && message.webhook.is_none();
                    // Exactly the code: a quote of these instructions is not from the person.
                    if !is_person || message.text.trim() != code {
                        continue;
                    }
                    let shown =
                        self.rest.add_reaction(message.channel, message.id, SEEN, REACTION_WAIT).await;
                    if let Err(fault) = shown {
                        tracing::debug!(%fault, "reaction to the code failed");
                    }
                    let user = message.author.user;
                    let name = user.display_name.unwrap_or(user.name);
                    return Ok(CodeAuthor { id: user.id.to_string(), name });
                }
                Some(Event::Failed(failure)) => return Err(failure.to_string()),
                Some(_) => {}
                None => return Err("the connection to Discord ended: try again".to_owned()),
            }
        }
    }

    fn connect(&self) -> (EventReceiver, DropGuard) {
        let stop = CancellationToken::new();
        let (sink, events) = websocket::event_channel(EVENTS_MAX);
        let settings = websocket::SessionSettings {
            token: self.token.clone(),
            base: self.base.clone(),
            ready_timeout: websocket::READY_TIMEOUT,
            counts: Arc::default(),
            shards: None,
            slots: None,
        };
        tokio::spawn(websocket::run(settings, stop.clone(), sink));
        (events, stop.drop_guard())
    }
}

/// True for three parts of base64url, the form of a bot's token.
pub(crate) fn is_token(text: &str) -> bool {
    let is_part = |part: &str| {
        part.len() >= 5
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let parts: Vec<&str> = text.split('.').collect();
    parts.len() == 3 && parts.into_iter().all(is_part)
}

/// Describes a failed request to the operator.
fn explain(fault: &RestError) -> String {
    match fault {
        RestError::Rejected(rejection) if rejection.kind == RejectionKind::Unauthorized => {
            "Discord refuses the token. In the developer portal open your application, Bot, press Reset Token, and use \
             the new one"
                .to_owned()
        }
        RestError::Rejected(rejection) if rejection.status.is_none() => format!(
            "Discord cannot be reached from this machine: {}. Check its network, and the proxy or address of --base-url",
            rejection.why
        ),
        _ => format!("Discord did not answer as expected: {fault}"),
    }
}
