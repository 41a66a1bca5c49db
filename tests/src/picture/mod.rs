//! A picture of a thread, from what the fake Discord has kept: one SVG file that needs no font, script or network of its
//! own, and is readable on a light and on a dark page.
//!
//! It shows what everybody in the thread sees, as Discord shows it: the message that the thread hangs from, then its
//! messages in order, without those that were deleted or that one person alone saw. Nothing is added, left away or worded
//! anew; where Discord shows a text as it stands, so does the picture.
//!
//! # Parts
//! - [`Transcript`]: what is drawn, as JSON that can be kept.
//! - [`markup`]: what Discord makes of a text: code, quotes, small print.
//! - [`measure`]: where lines break, without a font at hand.
//! - [`page`] draws; [`svg`] is the only place that writes markup, and escapes whatever it is given.
//!
//! # Left out
//! Replies' first lines, previews of links and images, who else reacted, and the reader's own client around it.

mod badge;
pub mod markup;
pub mod measure;
pub mod page;
pub mod svg;

use crate::fake_discord::core::model::message_flag::{EPHEMERAL, LOADING};
use crate::fake_discord::core::model::message_kind::THREAD_STARTER;
use crate::fake_discord::core::model::{Id, Message, User};
use crate::fake_discord::core::world::World;
use serde::{Deserialize, Serialize};

/// A thread as everybody in it sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Transcript {
    /// The name of the channel that it is in.
    pub channel: String,
    /// Its own name.
    pub thread: String,
    /// Who wrote, used a command, reacted or is named.
    pub users: Vec<User>,
    /// What is seen, oldest first.
    pub messages: Vec<Message>,
}

impl Transcript {
    /// The transcript of a thread; `None` when there is no such thread.
    #[must_use]
    pub fn of(world: &World, thread: Id) -> Option<Self> {
        let place = world.channel(thread).ok()?;
        let parent = world.channel(place.parent_id?).ok()?;
        // In the thread the service shows the message that it hangs from where it put a mark of it.
        let resolved = |message: &Message| match message.kind {
            THREAD_STARTER => world.messages.get(thread).cloned(),
            _ => Some(message.clone()),
        };
        let messages: Vec<Message> = world.messages_of(thread).filter_map(resolved).filter(is_seen).collect();
        let is_there = |user: &&User| messages.iter().any(|message| concerns(message, user.id));
        let users = world.users.iter().filter(is_there).cloned().collect();
        Some(Self { channel: parent.name.clone(), thread: place.name.clone(), users, messages })
    }

    /// What somebody is called.
    #[must_use]
    pub fn name(&self, id: Id) -> &str {
        self.user(id).map_or("somebody", |user| &user.name)
    }

    fn user(&self, id: Id) -> Option<&User> {
        self.users.iter().find(|user| user.id == id)
    }
}

fn is_seen(message: &Message) -> bool {
    message.deleted_ms.is_none() && message.flags & (EPHEMERAL | LOADING) == 0
}

fn concerns(message: &Message, user: Id) -> bool {
    let named = message.content.contains(&format!("<@{user}>"));
    let acted = message.origin.as_ref().is_some_and(|origin| origin.user_id == user);
    message.author_id == user || named || acted || message.reactions.values().any(|who| who.contains(&user))
}
