//! Keys that a client invents: millions of them must not grow the gateway's memory.

use std::time::Duration;

use weir_common::limit::rolling;
use weir_common::time::Tick;
use weir_gateway::limit::key::{Key, Scope, Seed};
use weir_gateway::limit::memory::MemoryStore;
use weir_gateway::limit::{LimitCheck, Quota};

/// The maximum of entries for unknown keys.
const ROOM: usize = 50_000;

/// The resident memory of this process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4_096
}

fn check(seed: &Seed, name: u32, known: bool) -> LimitCheck {
    let quota =
        Quota::Rolling(rolling::RollingQuota { requests: 60, window: Duration::from_secs(60) });
    let limit = seed.limit("workspace");
    let key = Key::new(seed.owner(Scope::Workspace, &name.to_be_bytes()), limit);
    LimitCheck { known, ..LimitCheck::new(key, limit, quota) }
}

#[test]
fn two_million_unknown_keys_leave_memory_flat_and_known_tenants_untouched() {
    let seed = Seed::new([9; 16]);
    let store = MemoryStore::new(ROOM);
    let tenant = check(&seed, u32::MAX, true);
    for _ in 0..7 {
        assert!(store.judge(&[tenant], Tick(1)).unwrap().is_admitted());
    }
    let names = |from: u32, to: u32| {
        for name in from..to {
            let _ = store.judge(&[check(&seed, name, false)], Tick(u64::from(name)));
        }
    };
    names(0, 500_000);
    let early = resident();
    names(500_000, 2_000_000);
    let grown = resident().saturating_sub(early);
    // Other tests of this process use some memory meanwhile; a count for each key would need 150
    // MiB.
    assert!(grown < 64 << 20, "{} KiB more after four times as many", grown >> 10);
    let fill = store.fill();
    assert!(fill.unknown_keys <= ROOM + ROOM / 10, "{fill:?}");
    assert_eq!(store.usage(&tenant, Tick(2_000_000)).unwrap().remaining, 53);
}
