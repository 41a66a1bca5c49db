//! Tables for [`super`].

use super::*;
use crate::core::lease::NsInit;

const TICKS: u64 = 777;
const INODE: u64 = 4242;
const PID: i32 = 100;

struct Scenario {
    lease: LeaseId,
    gateway: GatewayInstanceId,
    scope: PidScope,
}

fn scenario() -> Scenario {
    Scenario {
        lease: LeaseId::mint(),
        gateway: GatewayInstanceId::mint(),
        scope: PidScope { boot_id: "boot".into(), pidns: 7, timens: Some(3), init: NsInit::default() },
    }
}

impl Scenario {
    fn record(&self, inode: Option<u64>) -> Claim<'_> {
        Claim {
            process: ProcessRecord { pid: PID, start_ticks: TICKS, inode },
            scope: &self.scope,
            lease_id: self.lease,
            gateway: self.gateway,
            cgroup: None,
        }
    }

    fn other_boot(&self) -> Option<PidScope> {
        Some(PidScope { boot_id: "other".into(), ..self.scope.clone() })
    }

    fn other_namespace(&self) -> Option<PidScope> {
        Some(PidScope { pidns: 8, ..self.scope.clone() })
    }

    fn marker(&self) -> Marker {
        Marker::Pair { lease: self.lease.to_string(), gateway: self.gateway.to_string() }
    }

    fn live(&self) -> Evidence {
        Evidence {
            handle: Some(HandleId(1)),
            pid: PID,
            scope: Some(self.scope.clone()),
            life: ProcessState::Running,
            start_ticks: Some(TICKS),
            ppid: Some(50),
            pgid: Some(PID),
            sid: Some(PID),
            inode: Some(INODE),
            marker: self.marker(),
            exe: None,
            cgroup: None,
            own_child: false,
        }
    }
}

type Change<'a> = &'a dyn Fn(&mut Evidence);

/// Copy of evidence with a change.
fn with(base: &Evidence, change: impl FnOnce(&mut Evidence)) -> Evidence {
    let mut now = base.clone();
    change(&mut now);
    now
}

#[test]
fn verdicts_with_recorded_inode() {
    let w = scenario();
    let live = w.live();
    let table: [(&str, Change<'_>, &str); 16] = [
        ("all agrees", &|_| {}, "owned"),
        ("same tick, other inode", &|e| e.inode = Some(1), "not_ours"),
        ("environment missing, inode agrees", &|e| e.marker = Marker::Missing, "owned"),
        ("other boot", &|e| e.scope = w.other_boot(), "gone"),
        ("other pid namespace", &|e| e.scope = w.other_namespace(), "not_ours"),
        ("start time shifted, inode agrees", &|e| e.start_ticks = Some(9), "owned"),
        (
            "/proc unreadable, no inode",
            &|e| {
                (e.life, e.inode, e.start_ticks, e.marker) =
                    (ProcessState::Unreadable, None, None, Marker::Unreadable)
            },
            "unknown",
        ),
        (
            "hidepid, inode agrees",
            &|e| (e.life, e.start_ticks, e.marker) = (ProcessState::Unreadable, None, Marker::Unreadable),
            "owned",
        ),
        ("environment unreadable, inode agrees", &|e| e.marker = Marker::Unreadable, "owned"),
        ("no inode now", &|e| e.inode = None, "unknown"),
        ("no inode now, own child", &|e| (e.inode, e.own_child) = (None, true), "owned"),
        ("zombie", &|e| e.life = ProcessState::Zombie, "gone"),
        ("no such process", &|e| (e.life, e.handle) = (ProcessState::Gone, None), "gone"),
        ("scope unreadable", &|e| e.scope = None, "unknown"),
        ("other pid", &|e| e.pid = 101, "not_ours"),
        ("no handle", &|e| e.handle = None, "unknown"),
    ];
    for (name, change, want) in table {
        let now = with(&live, change);
        assert_eq!(verify(&w.record(Some(INODE)), &now, &SignalGuard::default()).as_str(), want, "{name}");
    }
}

#[test]
fn verdicts_without_recorded_inode() {
    let w = scenario();
    let live = Evidence { inode: None, ..w.live() };
    let other = Marker::Pair { lease: w.lease.to_string(), gateway: GatewayInstanceId::mint().to_string() };
    let table: [(&str, Change<'_>, &str); 11] = [
        ("pid, ticks and environment agree", &|_| {}, "owned"),
        ("start time differs", &|e| e.start_ticks = Some(1), "not_ours"),
        ("same tick, no marker", &|e| e.marker = Marker::Missing, "not_ours"),
        ("another gateway's wrapper", &|e| e.marker = other.clone(), "not_ours"),
        ("marker twice", &|e| e.marker = Marker::Ambiguous, "unknown"),
        ("environment unreadable", &|e| e.marker = Marker::Unreadable, "unknown"),
        ("start time unreadable", &|e| e.start_ticks = None, "unknown"),
        ("start time unreadable, own child", &|e| (e.start_ticks, e.own_child) = (None, true), "owned"),
        ("no environment, own child", &|e| (e.marker, e.own_child) = (Marker::Unreadable, true), "owned"),
        (
            "unreadable, own child",
            &|e| (e.life, e.start_ticks, e.own_child) = (ProcessState::Unreadable, None, true),
            "unknown",
        ),
        ("zombie", &|e| (e.life, e.marker) = (ProcessState::Zombie, Marker::Unreadable), "gone"),
    ];
    for (name, change, want) in table {
        let now = with(&live, change);
        assert_eq!(verify(&w.record(None), &now, &SignalGuard::default()).as_str(), want, "{name}");
    }
}

#[test]
fn own_ancestry_and_other_leases_are_never_signalled() {
    let w = scenario();
    for (pid, own_ancestry, other_roots, want) in [
        (PID, vec![], vec![], "owned"),
        (PID, vec![PID], vec![], "not_ours"),
        (PID, vec![], vec![PID], "not_ours"),
        (1, vec![], vec![], "not_ours"),
        (0, vec![], vec![], "not_ours"),
        (-5, vec![], vec![], "not_ours"),
    ] {
        let guard = SignalGuard {
            own_ancestry: own_ancestry.into_iter().collect(),
            other_roots: other_roots.into_iter().collect(),
        };
        let now = Evidence { pid, ..w.live() };
        let mut claim = w.record(Some(INODE));
        claim.process.pid = pid;
        assert_eq!(verify(&claim, &now, &guard).as_str(), want, "{pid} {guard:?}");
        let marked = Membership::Marked { since_ticks: Some(TICKS) };
        let member = verify_member(w.lease, w.gateway, marked, &now, &guard);
        assert_eq!(member.as_str(), want, "{pid} {guard:?}");
    }
}

#[test]
fn tree_members_need_own_proof() {
    let w = scenario();
    let live = w.live();
    let since = |since_ticks| Membership::Marked { since_ticks };
    let marked = since(Some(TICKS));
    let unmarked = with(&live, |e| e.marker = Marker::Missing);
    for (name, membership, now, want) in [
        ("marked", marked, live.clone(), "owned"),
        ("older than the tree", since(Some(TICKS + 1)), live.clone(), "not_ours"),
        ("age unknown", marked, with(&live, |e| e.start_ticks = None), "not_ours"),
        ("marked, tree of unknown age", since(None), live.clone(), "unknown"),
        ("not marked, tree of unknown age", since(None), unmarked.clone(), "not_ours"),
        ("not marked", marked, unmarked.clone(), "not_ours"),
        ("not marked, but a child", Membership::ChildOf(50), unmarked.clone(), "owned"),
        ("child of another", Membership::ChildOf(51), live.clone(), "not_ours"),
        ("parent unreadable", Membership::ChildOf(50), with(&unmarked, |e| e.ppid = None), "unknown"),
        ("zombie", Membership::ChildOf(50), with(&unmarked, |e| e.life = ProcessState::Zombie), "gone"),
        ("gone", marked, with(&live, |e| e.life = ProcessState::Gone), "gone"),
        ("unreadable", marked, with(&live, |e| e.life = ProcessState::Unreadable), "unknown"),
    ] {
        let verdict = verify_member(w.lease, w.gateway, membership, &now, &SignalGuard::default());
        assert_eq!(verdict.as_str(), want, "{name}");
    }
}

#[test]
fn lease_is_orphaned_only_by_dead_supervisor() {
    let w = scenario();
    let live = w.live();
    let record = w.record(Some(INODE)).process;
    for (name, now, want) in [
        ("running", live.clone(), SpawnerState::Alive),
        ("gone", with(&live, |e| e.life = ProcessState::Gone), SpawnerState::Dead),
        ("zombie", with(&live, |e| e.life = ProcessState::Zombie), SpawnerState::Dead),
        ("pid reused", with(&live, |e| e.inode = Some(9)), SpawnerState::Dead),
        ("other boot", with(&live, |e| e.scope = w.other_boot()), SpawnerState::Dead),
        ("other namespace", with(&live, |e| e.scope = w.other_namespace()), SpawnerState::Unknown),
        ("no inode now", with(&live, |e| e.inode = None), SpawnerState::Unknown),
    ] {
        assert_eq!(spawner_state(record, &w.scope, &now), want, "{name}");
    }
    let old = ProcessRecord { inode: None, ..record };
    assert_eq!(spawner_state(old, &w.scope, &live), SpawnerState::Alive);
}

#[test]
fn start_times_of_another_time_namespace_are_ignored() {
    let w = scenario();
    let elsewhere = |timens| PidScope { timens, ..w.scope.clone() };
    let live = Evidence { inode: None, ..w.live() };
    let shifted = with(&live, |e| e.start_ticks = Some(9));
    let other = with(&live, |e| e.inode = Some(1));
    let same = Evidence { inode: Some(INODE), ..shifted.clone() };
    let child = Evidence { own_child: true, ..shifted.clone() };
    let gone = with(&live, |e| (e.life, e.handle) = (ProcessState::Gone, None));
    let here = Some(3);
    // Columns: name, recorded inode, recorded clock, clock now, evidence, expected verdict, expected supervisor state.
    for (name, inode, then, now_by, now, want, of) in [
        ("shifted", None, here, Some(9), &shifted, "unknown", SpawnerState::Unknown),
        ("equal", None, here, Some(9), &live, "unknown", SpawnerState::Unknown),
        ("no clock on record", None, None, Some(9), &shifted, "unknown", SpawnerState::Unknown),
        ("no clock on record, equal", None, None, Some(9), &live, "unknown", SpawnerState::Unknown),
        ("no clock now", None, here, None, &shifted, "unknown", SpawnerState::Unknown),
        ("no clocks", None, None, None, &shifted, "not_ours", SpawnerState::Dead),
        ("no clocks, equal", None, None, None, &live, "owned", SpawnerState::Alive),
        ("the same clock", None, here, here, &shifted, "not_ours", SpawnerState::Dead),
        ("inode agrees", Some(INODE), here, Some(9), &same, "owned", SpawnerState::Alive),
        ("inode differs", Some(INODE), here, Some(9), &other, "not_ours", SpawnerState::Dead),
        ("no inode now", Some(INODE), here, Some(9), &live, "unknown", SpawnerState::Unknown),
        ("an own child", None, here, Some(9), &child, "owned", SpawnerState::Alive),
        ("no such process", None, here, Some(9), &gone, "gone", SpawnerState::Dead),
    ] {
        let recorded = elsewhere(then);
        let now = Evidence { scope: Some(elsewhere(now_by)), ..now.clone() };
        let claim = Claim { scope: &recorded, ..w.record(inode) };
        assert_eq!(verify(&claim, &now, &SignalGuard::default()).as_str(), want, "{name}");
        assert_eq!(spawner_state(claim.process, &recorded, &now), of, "{name}");
        assert_eq!(doubt(&claim, &now).is_some(), !matches!(want, "not_ours" | "gone"), "{name}");
    }
    let recorded = elsewhere(here);
    let claim = Claim { scope: &recorded, cgroup: Some(LEAF), ..w.record(None) };
    let inside = Evidence { scope: Some(elsewhere(Some(9))), cgroup: Some(LEAF.into()), ..shifted };
    assert_eq!(verify(&claim, &inside, &SignalGuard::default()).as_str(), "owned", "proved by the cgroup");
}

#[test]
fn markers_are_compared_exactly() {
    let w = scenario();
    let (l, g) = (format!("{ENV_LEASE_ID}={}", w.lease), format!("{ENV_GATEWAY_INSTANCE_ID}={}", w.gateway));
    for (name, environ, want) in [
        ("both", format!("A=1\0{l}\0{g}\0"), true),
        ("both, no last NUL", format!("{g}\0{l}"), true),
        ("one", format!("{l}\0"), false),
        ("within another value", format!("X={l}\0{g}\0"), false),
        ("a longer name", format!("Z{l}\0{g}\0"), false),
        ("a longer value", format!("{l}0\0{g}\0"), false),
        ("twice", format!("{l}\0{g}\0{l}\0"), false),
        ("empty", String::new(), false),
    ] {
        assert_eq!(Marker::parse(environ.as_bytes()).names(w.lease, w.gateway), want, "{name}");
    }
    assert_eq!(Marker::parse(format!("{l}\0{g}\0{g}\0").as_bytes()), Marker::Ambiguous);
    assert_eq!(Marker::parse(b"A=1"), Marker::Missing);
}

#[test]
fn verdict_explains_its_reason() {
    let (w, live) = (scenario(), scenario().live());
    let other = with(&live, |e| e.inode = Some(1));
    for (now, why) in [
        (Evidence { scope: Some(w.scope.clone()), ..live }, "the record matches the running processes"),
        (other, "the pid was reused by another process (pidfs inode)"),
    ] {
        assert_eq!(verify(&w.record(Some(INODE)), &now, &SignalGuard::default()).why(), why);
    }
}

const LEAF: &str = "/s/acp-supervisor-ab/lease";

#[test]
fn lease_cgroup_replaces_unreadable_evidence() {
    let w = scenario();
    let inside = Evidence { cgroup: Some(LEAF.into()), ..w.live() };
    let hidden = with(&inside, |e| (e.inode, e.marker) = (None, Marker::Unreadable));
    let outside = |group: Option<&str>| with(&hidden, |e| e.cgroup = group.map(str::to_owned));
    let named = |group: Option<&str>| Evidence { marker: w.marker(), ..outside(group) };
    let other_lease = Marker::Pair { lease: LeaseId::mint().to_string(), gateway: w.gateway.to_string() };
    // Columns: name, recorded inode, evidence, expected verdict.
    for (name, inode, now, want) in [
        ("no inode and no environment now", Some(INODE), hidden.clone(), "owned"),
        ("below the cgroup", Some(INODE), outside(Some("/s/acp-supervisor-ab/lease/x")), "owned"),
        (
            "no inode now, another cgroup",
            Some(INODE),
            outside(Some("/s/acp-supervisor-ab/lease2")),
            "unknown",
        ),
        ("no inode now, cgroup unreadable", Some(INODE), outside(None), "unknown"),
        ("in the cgroup, other inode", Some(INODE), with(&inside, |e| e.inode = Some(1)), "not_ours"),
        ("moved out, same inode", Some(INODE), with(&inside, |e| e.cgroup = Some("/".into())), "owned"),
        ("no inode recorded, environment unreadable", None, hidden.clone(), "owned"),
        ("no inode recorded, no environment", None, with(&hidden, |e| e.marker = Marker::Missing), "owned"),
        ("no inode recorded, marker twice", None, with(&hidden, |e| e.marker = Marker::Ambiguous), "owned"),
        ("marker of another lease", None, with(&hidden, |e| e.marker = other_lease), "not_ours"),
        ("no inode recorded, all agrees", None, named(Some(LEAF)), "owned"),
        ("no inode recorded, another cgroup", None, named(Some("/")), "unknown"),
        ("no inode recorded, cgroup unreadable", None, named(None), "unknown"),
        ("in the cgroup, other start time", None, with(&hidden, |e| e.start_ticks = Some(1)), "not_ours"),
        ("in the cgroup, start time unreadable", None, with(&hidden, |e| e.start_ticks = None), "owned"),
        ("other boot", Some(INODE), with(&hidden, |e| e.scope = w.other_boot()), "gone"),
        ("zombie", None, with(&hidden, |e| e.life = ProcessState::Zombie), "gone"),
    ] {
        let claim = Claim { cgroup: Some(LEAF), ..w.record(inode) };
        assert_eq!(verify(&claim, &now, &SignalGuard::default()).as_str(), want, "{name}");
    }
    let guard = SignalGuard { own_ancestry: [PID].into(), ..SignalGuard::default() };
    let claim = Claim { cgroup: Some(LEAF), ..w.record(Some(INODE)) };
    assert_eq!(verify(&claim, &inside, &guard).as_str(), "not_ours", "the supervisor is never owned");
}

#[test]
fn members_of_lease_cgroup_belong_to_tree() {
    let w = scenario();
    let unmarked = Evidence { marker: Marker::Missing, inode: None, ..w.live() };
    let inside = with(&unmarked, |e| e.cgroup = Some(LEAF.into()));
    let group = |text: &str| with(&unmarked, |e| e.cgroup = Some(text.into()));
    for (name, now, want) in [
        ("cleared environment", inside.clone(), "owned"),
        ("below the cgroup", group("/s/acp-supervisor-ab/lease/inner"), "owned"),
        ("sibling", group("/s/acp-supervisor-ab/lease2"), "not_ours"),
        ("parent", group("/s/acp-supervisor-ab"), "not_ours"),
        ("cgroup unreadable", unmarked.clone(), "not_ours"),
        ("zombie", with(&inside, |e| e.life = ProcessState::Zombie), "gone"),
        ("unreadable", with(&inside, |e| e.life = ProcessState::Unreadable), "unknown"),
    ] {
        let verdict =
            verify_member(w.lease, w.gateway, Membership::InCgroup(LEAF), &now, &SignalGuard::default());
        assert_eq!(verdict.as_str(), want, "{name}");
    }
    let guard = SignalGuard { other_roots: [PID].into(), ..SignalGuard::default() };
    let verdict = verify_member(w.lease, w.gateway, Membership::InCgroup(LEAF), &inside, &guard);
    assert_eq!(verdict.as_str(), "not_ours", "H21: the root of another lease");
}
