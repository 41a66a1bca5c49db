#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
use super::*;
use crate::core::marks::Progress;
use acp_shared::protocol::{LeaseKind, LeaseState};
use std::os::fd::AsFd;

/// Image of a supervisor of protocol 1, recorded from its program at an upgrade: a gateway of epoch 3, its agent
/// with output acknowledged up to byte 2 and one written message, and a terminal of the agent.
const PROTOCOL_1: &[u8] = include_bytes!("protocol_1.image");

#[test]
fn image_of_protocol_1_is_read() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(rustix::fs::memfd_create("recorded", flags).unwrap());
    (&file).write_all(PROTOCOL_1).unwrap();
    rustix::fs::fcntl_add_seals(&file, SEALS).unwrap();
    let (mut handover, summary) = read(file.as_fd()).unwrap();
    assert_eq!((summary.leases, handover.living_leases()), (2, 2));
    let [known] = &handover.head.installations[..] else { panic!("one gateway") };
    assert_eq!((known.epoch_max, &known.progress), (3, &Progress::default()));
    assert_eq!(handover.head.kept_until_ms, []);
    assert!(handover.head.helpers.is_empty());
    for (entry, (is_agent, output)) in handover.entries.iter_mut().zip([(true, "llo\n"), (false, "output\n")])
    {
        assert_eq!(entry.lease.kind == LeaseKind::Agent, is_agent);
        assert_eq!((entry.lease.state, entry.lease.graces.term_ms), (LeaseState::Open, 3_000));
        let mut buffers = entry.relay.iter_mut().flat_map(RelayState::raw_buffers);
        assert!(buffers.any(|bytes| bytes == output.as_bytes()), "{output:?}");
    }
    // An image that this program writes of it is read again.
    let (again, _) = write(&mut handover).unwrap();
    assert_eq!(read(again.as_fd()).unwrap().1.leases, 2);
}
