//! Tests of the fake Discord over real HTTP and a real websocket, and as a process that is killed.

mod fake_discord {
    pub(crate) mod durable;
    pub(crate) mod faults;
    pub(crate) mod gateway;
    pub(crate) mod ground;
    pub(crate) mod interactions;
    pub(crate) mod limits;
    pub(crate) mod load;
    pub(crate) mod machine;
    pub(crate) mod messages;
    pub(crate) mod mistakes;
    pub(crate) mod rules;
    pub(crate) mod threads;
    pub(crate) mod webhooks;
    pub(crate) mod wire;
}
