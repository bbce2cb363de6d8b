//! Which ports may be called. (core)
//!
//! Invariant: a port that browsers block is called under no settings: what listens there is no web
//! server, and may obey what a delivery says.

/// The bad ports of the Fetch standard (<https://fetch.spec.whatwg.org/#port-blocking>).
const BLOCKED: [u16; 83] = [
    0, 1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101,
    102, 103, 104, 109, 110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427,
    465, 512, 513, 514, 515, 526, 530, 531, 532, 540, 548, 554, 556, 563, 587, 601, 636, 989, 990,
    993, 995, 1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, 6665, 6666, 6667,
    6668, 6669, 6679, 6697, 10080,
];

/// Whether browsers block a port.
#[must_use]
pub fn is_blocked(port: u16) -> bool {
    BLOCKED.contains(&port)
}

/// Checks a port; `allowed` narrows the choice unless it is empty.
pub fn check(port: u16, allowed: &[u16]) -> Result<(), String> {
    if is_blocked(port) {
        return Err(format!("The port {port} cannot be called: browsers block it, too."));
    }
    if allowed.is_empty() || allowed.contains(&port) {
        return Ok(());
    }
    let allowed: Vec<String> = allowed.iter().map(u16::to_string).collect();
    Err(format!("The port {port} is not allowed; use one of {}.", allowed.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_port_is_called_but_those_that_browsers_block() {
        for port in [80, 443, 3000, 8080, 8443, 10079, 10081, 65535] {
            assert_eq!(check(port, &[]), Ok(()), "{port}");
        }
        for port in [0, 22, 25, 110, 139, 636, 2049, 6000, 6667, 10080] {
            assert!(check(port, &[]).is_err(), "{port}");
            assert!(check(port, &[port]).is_err(), "{port}, although it is listed");
        }
        assert!(BLOCKED.is_sorted());
    }

    #[test]
    fn a_list_narrows_the_choice() {
        assert_eq!(check(8443, &[443, 8443]), Ok(()));
        let why = check(8080, &[443, 8443]).unwrap_err();
        assert_eq!(why, "The port 8080 is not allowed; use one of 443, 8443.");
    }
}
