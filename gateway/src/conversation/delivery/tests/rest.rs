//! How long the driver rests between two looks at all bindings.

use super::*;

#[test]
fn slow_scan_lengthens_scan_interval() {
    let table = [(0, 20), (1, 20), (5, 20), (10, 40), (50, 200), (125, 500), (10_000, 500)];
    for (took, want) in table {
        assert_eq!(
            scan_interval(Duration::from_millis(took)),
            Duration::from_millis(want),
            "after {took} ms"
        );
    }
}
