use super::*;

/// One connection of a gateway.
struct Client {
    stream: UnixStream,
    lines: std::io::Lines<BufReader<UnixStream>>,
}

impl Client {
    fn connect(service: &ChatService, life: u32) -> Self {
        let stream = UnixStream::connect(&service.socket).unwrap_or_else(|e| panic!("{e}"));
        let read = stream.try_clone().unwrap_or_else(|e| panic!("{e}"));
        let mut client = Self { stream, lines: BufReader::new(read).lines() };
        client.ask(&ToService::Hello { life });
        client
    }

    fn ask(&mut self, ask: &ToService) {
        self.stream.write_all(line(ask).as_bytes()).unwrap_or_else(|e| panic!("{e}"));
    }

    fn answer(&mut self) -> ToGateway {
        let text = self
            .lines
            .next()
            .unwrap_or_else(|| panic!("the connection ended"))
            .unwrap_or_else(|e| panic!("{e}"));
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    /// Sends a message and returns its id.
    fn send(&mut self, nonce: &str) -> String {
        let message = message(nonce, "final");
        self.ask(&ToService::Send { call: 1, message });
        match self.answer() {
            ToGateway::Sent { message_id, .. } => message_id,
            other => panic!("{other:?}"),
        }
    }

    fn lookup(&mut self, nonce: &str) -> Option<String> {
        self.ask(&ToService::Lookup { call: 2, conversation: "c".to_owned(), nonce: nonce.to_owned() });
        match self.answer() {
            ToGateway::Found { message_id, .. } => message_id,
            other => panic!("{other:?}"),
        }
    }
}

fn message(nonce: &str, kind: &str) -> Text {
    let text = format!("text of {nonce}");
    Text { conversation: "c".to_owned(), nonce: nonce.to_owned(), kind: kind.to_owned(), text }
}

fn service() -> (tempfile::TempDir, ChatService) {
    let dir = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    let service = ChatService::start(&dir.path().join("chat.sock"), Seed::new());
    (dir, service)
}

fn held(service: &ChatService) -> usize {
    service.conversations().get("c").map_or(0, Vec::len)
}

#[test]
fn a_nonce_counts_once_within_a_connection_and_anew_in_the_next_one() {
    let (_dir, service) = service();
    let mut first = Client::connect(&service, 1);
    let id = first.send("a");
    assert_eq!(first.send("a"), id);
    assert_ne!(first.send("b"), id);
    assert_eq!((held(&service), first.lookup("a")), (2, Some(id.clone())));
    drop(first);
    let mut second = Client::connect(&service, 1);
    assert_ne!(second.send("a"), id, "a send without a lookup creates a second message");
    assert_eq!(held(&service), 3);
}

/// After a lookup that found nothing, the same gateway process cannot create a duplicate.
#[test]
fn a_look_that_finds_nothing_is_a_promise_to_one_gateway() {
    let (_dir, service) = service();
    let mut first = Client::connect(&service, 1);
    assert_eq!(first.lookup("a"), None);
    let id = first.send("a");
    drop(first);
    let mut same = Client::connect(&service, 1);
    assert_eq!(same.send("a"), id);
    drop(same);
    let mut next = Client::connect(&service, 2);
    assert_ne!(next.send("a"), id);
    assert_eq!(held(&service), 2);
}

#[test]
fn what_people_say_comes_again_until_it_is_taken() {
    let (_dir, service) = service();
    let message_id = service.say("c", "ada", "hello");
    let mut client = Client::connect(&service, 1);
    for _ in 0..2 {
        let ToGateway::Said(said) = client.answer() else { panic!("no message was delivered") };
        assert_eq!((said.message_id.as_str(), said.text.as_str()), (message_id.as_str(), "hello"));
    }
    assert_eq!(service.count_pending("c"), 1);
    client.ask(&ToService::Acknowledge { conversation: "c".to_owned(), message_id, refused: None });
    crate::wait::until(crate::wait::SOON, "the message is accepted", || service.count_pending("c") == 0);
    assert_eq!(service.person_messages().len(), 1);
}

#[test]
fn an_answer_that_is_held_is_of_a_message_that_is_there() {
    let (_dir, service) = service();
    let mut client = Client::connect(&service, 1);
    std::thread::scope(|scope| {
        let holding = scope.spawn(|| service.withhold_answer(crate::wait::SOON));
        // Messages that are sent before the hold begins are answered.
        while held(&service) == 0 || !service.tally().fates.contains_key("held") {
            let nonce = format!("n{}", held(&service));
            client.ask(&ToService::Send { call: 7, message: message(&nonce, "final") });
            crate::wait::until(crate::wait::SOON, "the message is in the conversation", || {
                client_has(&service, &nonce)
            });
        }
        assert!(holding.join().unwrap_or(false));
    });
    let count = held(&service);
    // The next answer belongs to the lookup: the held one never arrived.
    for _ in 1..count {
        assert!(matches!(client.answer(), ToGateway::Sent { call: 7, .. }));
    }
    assert!(client.lookup(&format!("n{}", count - 1)).is_some());
}

fn client_has(service: &ChatService, nonce: &str) -> bool {
    service.conversations().values().flatten().any(|message| message.text.nonce == nonce)
}
