//! Admission of cells on other machines.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::core::tenant::Account;
use acp_shared::ids::StartId;

const CELL: &str = "acp://plane/cell/main";

fn cell(name: &str) -> ClientUser {
    ClientUser { uid: 5, gid: 5, cell: Some(name.into()) }
}

fn home(name: &str) -> Home {
    Home { machine_id: name.to_owned(), dev: 0, ino: 0 }
}

#[test]
fn remote_acts_as_the_user_of_its_tenant() {
    let gateway = GatewayInstanceId::mint();
    let account = Account { uid: 900, gid: 901, groups: vec![902], entry: None };
    let of_cell = |name: &str| Tenant { cell: Some(name.to_owned()), ..Tenant::default() };
    let tenants = [
        Tenant { run_as: Some(account), ..of_cell(CELL) },
        of_cell("acp://plane/cell/bare"),
        Tenant { uid: Some(7), ..Tenant::default() },
        Tenant { instance_id: Some(gateway), ..Tenant::default() },
        of_cell("acp://elsewhere/cell/main"),
        of_cell("acp://plane/host/two"),
    ];
    let policy = |own_uid, host: Option<&str>| AccessPolicy {
        own_uid,
        own_gid: 70,
        host: host.map(|host| host.parse().unwrap()),
        allowed_uids: vec![],
        allowed_gids: vec![],
        admin_gids: vec![],
        secret: Secret::default(),
        secret_file: String::new(),
    };
    let host = Some("acp://plane/host/one");
    for (own_uid, host, name, want) in [
        (0, host, CELL, Ok((900, 901))),
        (0, host, "acp://plane/cell/bare", Err("has no run_as_user")),
        (7, host, "acp://plane/cell/bare", Ok((7, 70))),
        (
            7,
            host,
            "acp://plane/cell/other",
            Err("no [[tenant]] of this supervisor has cell = \"acp://plane/cell/other\""),
        ),
        (7, host, "acp://elsewhere/cell/main", Err("of another plane than this host, acp://plane/host/one")),
        (7, host, "acp://plane/host/two", Err("is a host")),
        (7, host, "acp://plane/host/one", Err("is a host")),
        (7, host, "plane/cell/bare", Err("is not acp://PLANE/cell/ID")),
        (7, None, "acp://plane/cell/bare", Err("does not serve other machines")),
    ] {
        match (policy(own_uid, host).authorize_remote(&tenants, name, gateway), want) {
            (Ok(user), Ok(want)) => {
                assert_eq!(((user.uid, user.gid), user.cell.as_deref()), (want, Some(name)));
            }
            (Err(refusal), Err(part)) => {
                assert_eq!(refusal.code, RefusalCode::NotAuthorised);
                assert!(refusal.message.contains(part), "{name}: {}", refusal.message);
            }
            (got, want) => panic!("{name}: {got:?}, not {want:?}"),
        }
    }
}

#[test]
fn home_of_remote_is_its_certificate() {
    let local = ClientUser { cell: None, ..cell("") };
    let claimed = Home { machine_id: "m".into(), dev: 1, ino: 2 };
    assert_eq!(home_of(&local, &claimed), Ok(claimed.clone()));
    assert_eq!(home_of(&cell(CELL), &claimed), Ok(home(CELL)));
    assert_eq!(home_of(&cell(CELL), &home("acp://plane/cell/other")), Ok(home(CELL)));
    for bad in [home(CELL), home("acp://"), home(&"x".repeat(257))] {
        assert_eq!(home_of(&local, &bad).unwrap_err().code, RefusalCode::BadRequest, "{bad:?}");
    }
}

#[test]
fn epoch_decides_alone_for_remote() {
    use RefusalCode::{EpochStale, InstanceOfOtherUser, RolledBack, VersionUnsupported};
    let (gateway, start_id, other_start) = (GatewayInstanceId::mint(), StartId::mint(), StartId::mint());
    let record = |uid, home| Installation {
        gateway,
        uid,
        home,
        epoch_max: 7,
        progress: Progress { start_id: Some(start_id), ..Progress::default() },
        damaged: None,
    };
    let (known, of_local) =
        (record(5, home(CELL)), record(5, Home { machine_id: "m".into(), dev: 1, ino: 2 }));
    let other_uid = record(6, home(CELL));
    // Its process cannot be seen, whatever is claimed about it.
    let live = |epoch| Some(LiveConnection { epoch, elsewhere: true });
    let local = ClientUser { cell: None, ..cell("") };
    for (name, known, live, user, epoch, start, want) in [
        ("first time", None, None, cell(CELL), 7, start_id, Ok(false)),
        ("next start", Some(&known), None, cell(CELL), 8, other_start, Ok(false)),
        ("take-over from a living one", Some(&known), live(7), cell(CELL), 8, other_start, Ok(true)),
        ("reconnection after a cut", Some(&known), live(7), cell(CELL), 7, start_id, Ok(true)),
        ("reconnection, nobody connected", Some(&known), None, cell(CELL), 7, start_id, Ok(false)),
        ("another start of the epoch", Some(&known), live(7), cell(CELL), 7, other_start, Err(RolledBack)),
        ("lower than a living one", Some(&known), live(7), cell(CELL), 6, start_id, Err(EpochStale)),
        ("lower, nobody connected", Some(&known), None, cell(CELL), 6, start_id, Err(RolledBack)),
        (
            "other cell",
            Some(&known),
            None,
            cell("acp://plane/cell/b"),
            8,
            other_start,
            Err(InstanceOfOtherUser),
        ),
        ("local gateway of its user", Some(&known), None, local, 8, other_start, Err(InstanceOfOtherUser)),
        (
            "instance of a local gateway",
            Some(&of_local),
            None,
            cell(CELL),
            8,
            other_start,
            Err(InstanceOfOtherUser),
        ),
        (
            "tenant with another user than before",
            Some(&other_uid),
            None,
            cell(CELL),
            8,
            other_start,
            Ok(false),
        ),
    ] {
        let marks = Marks { start_id: start, event_id: 0, offsets: Vec::new(), accepts_loss: false };
        let claimed = Some(ClaimedProgress { marks: &marks, acked: &[], now_ms: 1 });
        let home = home_of(&user, &of_local.home).unwrap();
        let got = admit(known, live, gateway, &user, &home, epoch, claimed);
        match (got, want) {
            (Ok(admitted), Ok(supersedes)) => {
                assert_eq!(admitted.supersedes, supersedes, "{name}");
                let installation = admitted.installation;
                assert_eq!((installation.uid, installation.epoch_max), (5, epoch), "{name}");
                assert_eq!(installation.cell(), Some(CELL), "{name}");
            }
            (Err(refusal), Err(code)) => assert_eq!(refusal.code, code, "{name}"),
            (got, want) => panic!("{name}: {got:?}, not {want:?}"),
        }
    }
    let refusal = admit(None, None, gateway, &cell(CELL), &home(CELL), 1, None).unwrap_err();
    assert_eq!(refusal.code, VersionUnsupported, "without marks");
}
