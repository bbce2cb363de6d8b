//! Which server of a Redis Cluster has a key. (core)
//!
//! Keys are in 16,384 slots, by the checksum of what is between their braces; each slot has one
//! primary, which has it since an epoch. Views of several servers are merged: of two primaries the
//! one with the higher epoch has a slot, so that one that was cut off is not used any more.
//!
//! Source: the Redis Cluster specification, *Key distribution model* and *Configuration epoch*.
//!
//! Not here: who is asked for a view (`servers::nodes`).

use super::address::ServerAddress;

/// The number of slots.
pub(super) const SLOTS: usize = 16_384;

/// The slot of a key with this text between its braces.
#[must_use]
pub(super) fn slot_of(tag: &[u8]) -> usize {
    let shift = |sum: u16| match sum & 0x8000 {
        0 => sum << 1,
        _ => sum << 1 ^ 0x1021,
    };
    let add = |sum: u16, byte: &u8| (0..8).fold(sum ^ u16::from(*byte) << 8, |sum, _| shift(sum));
    usize::from(tag.iter().fold(0, add)) % SLOTS
}

/// The primaries of a Cluster, and the slots that each has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClusterMap {
    /// The primaries, by their names in the Cluster.
    pub primaries: Vec<ClusterPrimary>,
    /// The primary of each slot, and since which epoch; empty before the first view.
    owners: Vec<Option<(usize, u64)>>,
}

/// One primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClusterPrimary {
    /// Its name in the Cluster.
    pub id: String,
    /// Where it is.
    pub address: ServerAddress,
}

impl ClusterMap {
    /// Reads a reply to `CLUSTER NODES` of the server at `from`. With TLS, servers that announce a
    /// name are reached by it, because certificates have names.
    #[must_use]
    pub(super) fn read(text: &str, from: &ServerAddress, tls: bool) -> Self {
        let mut map = Self { primaries: Vec::new(), owners: vec![None; SLOTS] };
        for line in text.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let [id, at, flags, _, _, _, epoch, _, slots @ ..] = &fields[..] else { continue };
            let has = |flag: &str| flags.split(',').any(|own| own == flag);
            // One that failed has its slots until a replica takes them over.
            let is_gone = has("noaddr") || has("handshake") || (has("fail") && slots.is_empty());
            let Some(address) = located(at, from, tls).filter(|_| has("master") && !is_gone) else {
                continue;
            };
            let own = Some((map.primaries.len(), epoch.parse().unwrap_or_default()));
            map.primaries.push(ClusterPrimary { id: (*id).to_owned(), address });
            for range in slots.iter().filter_map(|slots| range_of(slots)) {
                let owners = map.owners.get_mut(range).into_iter().flatten();
                owners.for_each(|owner| *owner = own);
            }
        }
        map
    }

    /// The primary that has a slot, as its number among the primaries.
    #[must_use]
    pub(super) fn owner(&self, slot: usize) -> Option<usize> {
        self.owners.get(slot).copied().flatten().map(|(owner, _)| owner)
    }

    /// Some slot of a primary.
    #[must_use]
    pub(super) fn slot_owned_by(&self, primary: usize) -> Option<usize> {
        self.owners.iter().position(|own| own.is_some_and(|(owner, _)| owner == primary))
    }

    /// What is known after a server has reported a view: of two primaries of a slot, the one with
    /// the higher epoch. What the server does not know at all is forgotten.
    #[must_use]
    pub(super) fn merged(self, mut view: Self) -> Self {
        let named = |id: &str| view.primaries.iter().position(|own| own.id == id);
        let known: Vec<Option<usize>> = self.primaries.iter().map(|own| named(&own.id)).collect();
        for (own, earlier) in view.owners.iter_mut().zip(&self.owners) {
            let Some((owner, epoch)) = *earlier else { continue };
            let owner = known.get(owner).copied().flatten();
            if let Some(owner) = owner
                && own.is_none_or(|(_, newer)| newer < epoch)
            {
                *own = Some((owner, epoch));
            }
        }
        view
    }
}

/// Where a node is, from `host:port@bus,name`.
fn located(text: &str, from: &ServerAddress, tls: bool) -> Option<ServerAddress> {
    let mut parts = text.split(',');
    let (at, _bus) = parts.next()?.split_once('@')?;
    let name = parts.next().filter(|name| tls && !name.is_empty());
    let (host, port) = at.rsplit_once(':')?;
    // A server that does not know its own address leaves it out.
    let host = name.or(Some(host).filter(|host| !host.is_empty())).unwrap_or(&from.host);
    ServerAddress::read(&format!("{host}:{port}"))
}

/// The slots of `5461-10922` or `5461`; none of one that is being moved, as `[5461->-ID]`.
fn range_of(text: &str) -> Option<std::ops::RangeInclusive<usize>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(port: u16) -> ServerAddress {
        ServerAddress { host: "10.0.0.9".to_owned(), port }
    }

    fn map(text: &str) -> ClusterMap {
        ClusterMap::read(text, &server(7), false)
    }

    fn ports(map: &ClusterMap, slots: &[usize]) -> Vec<Option<u16>> {
        let port = |slot: &usize| map.owner(*slot).map(|own| map.primaries[own].address.port);
        slots.iter().map(port).collect()
    }

    const VIEW: &str = "\
a 127.0.0.1:7001@17001,one.internal myself,master - 0 1 3 connected 0-5460 5462 [5461->-b]
b 127.0.0.1:7002@17002 master - 0 1 2 connected 5461 5463-10922
c :7003@17003 master,fail - 0 1 1 connected 10923-16383
d 127.0.0.1:7004@17004 slave a 0 1 3 connected
e 127.0.0.1:7005@17005 master,fail - 0 1 9 disconnected
f 127.0.0.1:7006@17006 handshake - 0 1 0 connected
g 127.0.0.1:7007@17007 master - 0 1 0 connected
";

    #[test]
    fn checksums_are_those_of_the_specification() {
        assert_eq!(slot_of(b"123456789"), 0x31C3);
        assert_eq!(slot_of(b""), 0);
        assert_eq!(slot_of(b"foo"), 12_182);
    }

    #[test]
    fn a_view_has_the_primaries_and_their_slots() {
        let map = map(VIEW);
        let ids: Vec<&str> = map.primaries.iter().map(|own| &*own.id).collect();
        assert_eq!(ids, ["a", "b", "c", "g"]);
        assert_eq!(
            ports(&map, &[0, 5_460, 5_461, 5_462, 5_463, 16_383]),
            [7_001, 7_001, 7_002, 7_001, 7_002, 7_003].map(Some)
        );
        assert_eq!(map.primaries[2].address.host, "10.0.0.9", "it does not know its address");
        assert_eq!([0, 1, 3].map(|nth| map.slot_owned_by(nth)), [Some(0), Some(5_461), None]);
    }

    #[test]
    fn with_tls_servers_are_reached_by_name() {
        let map = ClusterMap::read(VIEW, &server(7), true);
        assert_eq!(map.primaries[0].address.host, "one.internal");
        assert_eq!(map.primaries[1].address.host, "127.0.0.1");
    }

    #[test]
    fn a_primary_of_an_older_epoch_does_not_get_its_slots_back() {
        let before = map("a 127.0.0.1:1@11 master - 0 1 1 connected 0-99\n\
                          b 127.0.0.1:2@12 slave a 0 1 1 connected\n");
        let after = map("a 127.0.0.1:1@11 master - 0 1 1 connected\n\
                         b 127.0.0.1:2@12 master - 0 1 2 connected 0-99\n");
        let newer = before.clone().merged(after.clone());
        assert_eq!(ports(&newer, &[0, 99, 100]), [Some(2), Some(2), None]);
        let cut_off = map("a 127.0.0.1:1@11 master - 0 1 1 connected 0-99\n\
                           b 127.0.0.1:2@12 master,fail - 0 1 0 connected 100\n");
        let merged = newer.merged(cut_off);
        assert_eq!(ports(&merged, &[0, 99, 100]), [Some(2), Some(2), Some(2)]);
        // Another Cluster at the same addresses has other names.
        let rebuilt = map("z 127.0.0.1:1@11 master - 0 1 0 connected 0-99\n");
        assert_eq!(ports(&merged.merged(rebuilt), &[0, 100]), [Some(1), None]);
    }

    #[test]
    fn text_of_another_form_has_no_primaries() {
        for wrong in ["", "\n\n", "ERR unknown", "a b c d e f g h i j", "a 1@2 master - 0 1 1 x 0"]
        {
            assert_eq!(map(wrong).primaries, [], "{wrong}");
        }
        let beyond = map("a 127.0.0.1:1@11 master - 0 1 1 connected 16380-20000 9-3\n");
        assert_eq!(ports(&beyond, &[16_383, 5]), [None, None], "no such slots");
    }
}
