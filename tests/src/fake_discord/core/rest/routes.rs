//! The table of routes.

use super::{Ctx, Reply};
use crate::fake_discord::core::Machine;
use crate::fake_discord::core::error::ApiError;

/// Handler of a route.
pub type Handler = fn(&mut Machine, &Ctx<'_>) -> Result<Reply, ApiError>;

/// Authorization of a route.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// A bot's token is required.
    Bot,
    /// The path is sufficient.
    Open,
    /// The path is sufficient, and the global limit does not apply: interaction responses.
    Interaction,
}

use Access::{Bot, Interaction, Open};

/// Method and pattern, authorization, and handler. The first match is used.
const ROUTES: &[(&str, Access, Handler)] = &[
    ("GET /gateway/bot", Bot, Machine::get_gateway_bot),
    ("GET /users/@me", Bot, Machine::get_me),
    ("GET /users/@me/guilds", Bot, Machine::get_guilds),
    ("GET /applications/@me", Bot, Machine::get_application),
    ("PUT /applications/{}/commands", Bot, Machine::put_commands),
    ("PUT /applications/{}/guilds/{}/commands", Bot, Machine::put_commands),
    ("GET /guilds/{}/members/{}", Bot, Machine::get_member),
    ("GET /channels/{}", Bot, Machine::get_channel),
    ("POST /channels/{}/typing", Bot, Machine::post_typing),
    ("GET /channels/{}/messages", Bot, Machine::get_messages),
    ("POST /channels/{}/messages", Bot, Machine::post_message),
    ("GET /channels/{}/messages/{}", Bot, Machine::get_message),
    ("PATCH /channels/{}/messages/{}", Bot, Machine::patch_message),
    ("POST /channels/{}/messages/{}/threads", Bot, Machine::post_message_thread),
    ("PUT /channels/{}/messages/{}/reactions/{}/@me", Bot, Machine::put_reaction),
    ("DELETE /channels/{}/messages/{}/reactions/{}/@me", Bot, Machine::delete_reaction),
    ("POST /channels/{}/webhooks", Bot, Machine::post_webhook),
    ("GET /channels/{}/webhooks", Bot, Machine::get_channel_webhooks),
    ("POST /webhooks/{}/{}", Open, Machine::execute_webhook),
    ("PATCH /webhooks/{}/{}/messages/@original", Interaction, Machine::patch_original),
    ("DELETE /webhooks/{}/{}/messages/@original", Interaction, Machine::delete_original),
    ("POST /interactions/{}/{}/callback", Interaction, Machine::post_callback),
];

/// A matched route.
pub struct Route<'a> {
    /// Method and pattern.
    pub name: &'static str,
    /// The parts of the path at `{}` in the pattern.
    pub args: Vec<&'a str>,
    /// Major parameter of its bucket: the first id of the path, and for webhooks also the token.
    pub major: String,
    /// Whether a bot's token is required.
    pub needs_token: bool,
    /// Whether it is exempt from the global limit.
    pub interaction: bool,
    /// Its handler.
    pub handler: Handler,
}

/// Finds the route of a request.
///
/// # Errors
/// 404 with code 0, 405.
pub fn classify<'a>(method: &str, path: &'a [String]) -> Result<Route<'a>, ApiError> {
    let mut other_method = false;
    for (name, access, handler) in ROUTES {
        let Some((of, pattern)) = name.split_once(' ') else { continue };
        let Some(args) = matched(pattern, path) else { continue };
        if of != method {
            other_method = true;
            continue;
        }
        let webhook = matches!(path.first().map(String::as_str), Some("webhooks" | "interactions"));
        let majors = if webhook { 2 } else { 1 };
        let major = args.iter().take(majors).copied().collect::<Vec<_>>().join("/");
        return Ok(Route {
            name,
            major,
            needs_token: *access == Bot,
            interaction: *access == Interaction,
            handler: *handler,
            args,
        });
    }
    Err(if other_method { ApiError::wrong_method() } else { ApiError::no_route() })
}

fn matched<'a>(pattern: &str, path: &'a [String]) -> Option<Vec<&'a str>> {
    let parts: Vec<&str> = pattern.split('/').skip(1).collect();
    if parts.len() != path.len() {
        return None;
    }
    let mut args = Vec::new();
    for (part, given) in parts.iter().zip(path) {
        if *part == "{}" {
            args.push(given.as_str());
        } else if part != given {
            return None;
        }
    }
    Some(args)
}
