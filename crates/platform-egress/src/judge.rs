use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use url::{Host, Url};

use crate::EgressError;

/// Which addresses may be called.
#[derive(Debug, Clone)]
pub struct EgressRules {
    /// Every address may be called: for a machine of one's own.
    pub allow_private: bool,
    /// Hosts and networks that may be called although they are not global.
    pub allow: Vec<Allowed>,
    /// A response is read up to so many bytes; 0 = no bound.
    pub most_bytes: usize,
    /// Requests at once; 0 = no bound.
    pub at_once: usize,
    /// Requests of one account at once; 0 = no bound.
    pub at_once_an_account: usize,
}

impl Default for EgressRules {
    fn default() -> Self {
        Self { allow_private: false, allow: Vec::new(), most_bytes: 10 << 20, at_once: 64, at_once_an_account: 8 }
    }
}

/// An element of `PLATFORM_EGRESS_ALLOW`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    /// A host by its name or address as it stands in a URL.
    Host(String),
    /// A network.
    Network(IpNet),
}

impl Allowed {
    /// Reads `10.0.0.0/8`, `127.0.0.1`, `intranet.example`.
    pub fn parse(text: &str) -> Option<Self> {
        if let Ok(network) = text.parse::<IpNet>() {
            return Some(Self::Network(network));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Some(Self::Network(IpNet::from(address)));
        }
        let good =
            !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
        good.then(|| Self::Host(text.to_ascii_lowercase()))
    }
}

impl EgressRules {
    /// The form of an address: scheme, no user info, a port, a host.
    pub(crate) fn judge_url(&self, url: &Url) -> Result<(), EgressError> {
        let refuse = |reason: &str| Err(EgressError::NotAllowed(format!("`{}` {reason}.", shown(url))));
        if !matches!(url.scheme(), "http" | "https") {
            return refuse("is no http or https address");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refuse("has a user name or password in it");
        }
        if url.port() == Some(0) {
            return refuse("has port 0");
        }
        match url.host() {
            None | Some(Host::Domain("")) => refuse("has no host"),
            Some(Host::Ipv4(address)) => self.check_address(address.to_string().as_str(), address.into()),
            Some(Host::Ipv6(address)) => self.check_address(address.to_string().as_str(), address.into()),
            Some(Host::Domain(_)) => Ok(()),
        }
    }

    /// An address that `host` stands for.
    pub(crate) fn check_address(&self, host: &str, address: IpAddr) -> Result<(), EgressError> {
        let listed = self.allow.iter().any(|allowed| match allowed {
            Allowed::Host(name) => name.eq_ignore_ascii_case(host),
            Allowed::Network(network) => network.contains(&address),
        });
        if self.allow_private || listed || is_global_unicast(address) {
            return Ok(());
        }
        Err(EgressError::NotAllowed(format!(
            "`{host}` leads to an address that is not public; PLATFORM_EGRESS_ALLOW of the server can allow it."
        )))
    }
}

/// A URL without what may be secret.
pub(crate) fn shown(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}", url.scheme(), url.host_str().unwrap_or_default())
}

/// Special IPv4 networks (IANA registry): everything else is global unicast.
const SPECIAL_V4: [&str; 18] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.31.196.0/24",
    "192.52.193.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "192.175.48.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/3",
    // The metadata service of a cloud that gave it a public address.
    "168.63.129.16/32",
];

/// The IPv6 networks that are handed out as global unicast, and what is special within them.
const GLOBAL_V6: &str = "2000::/3";
const SPECIAL_V6: [&str; 7] = [
    // Teredo, ORCHID, benchmarking and other protocol assignments.
    "2001::/23",
    "2001:db8::/32",
    // 6to4: an IPv4 address inside.
    "2002::/16",
    "2620:4f:8000::/48",
    "3fff::/20",
    // The rest of what is not allocated.
    "3ffe::/16",
    "3000::/5",
];

/// Whether an address is global unicast: an allow-list, so that what is new or odd is refused.
pub fn is_global_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_global_v4(address),
        IpAddr::V6(address) => is_global_v6(address),
    }
}

fn is_global_v4(address: Ipv4Addr) -> bool {
    !SPECIAL_V4.iter().any(|network| network.parse::<Ipv4Net>().expect("a network").contains(&address))
}

fn is_global_v6(address: Ipv6Addr) -> bool {
    let within = |network: &str| network.parse::<Ipv6Net>().expect("a network").contains(&address);
    within(GLOBAL_V6) && !SPECIAL_V6.iter().any(|network| within(network))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_global_unicast_addresses_pass() {
        for good in ["1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700:4700::1111", "2a00:1450:4001::1"] {
            assert!(is_global_unicast(good.parse().expect("an address")), "{good}");
        }
        for bad in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "168.63.129.16",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:10::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "3ffe::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_global_unicast(bad.parse().expect("an address")), "{bad}");
        }
    }

    /// All the ways in which somebody has written an address to get past a judge.
    fn spellings(address: Ipv4Addr) -> Vec<String> {
        let ([a, b, c, d], number) = (address.octets(), u32::from(address));
        let (high, low, rest, last) = (number >> 16, number & 0xffff, number & 0xff_ffff, number & 0xffff);
        let dotted = address.to_string();
        let wide = |text: &str| text.chars().map(|c| char::from_u32(u32::from(c) + 0xfee0).unwrap_or(c)).collect();
        let encoded = dotted.bytes().fold(String::new(), |text, byte| format!("{text}%{byte:02x}"));
        vec![
            dotted.clone(),
            format!("{dotted}."),
            number.to_string(),
            format!("0x{number:x}"),
            format!("0X{number:08X}"),
            format!("0{number:o}"),
            format!("0x{a:x}.0x{b:x}.0x{c:x}.0x{d:x}"),
            format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
            format!("000{a:o}.{b}.0x{c:x}.{d}"),
            format!("{a}.{rest}"),
            format!("0x{a:x}.0{rest:o}"),
            format!("{a}.{b}.{last}"),
            wide(&dotted),
            dotted.replace('.', "。"),
            encoded,
            format!("[::ffff:{dotted}]"),
            format!("[::FFFF:{high:x}:{low:x}]"),
            format!("[0:0:0:0:0:ffff:{high:x}:{low:x}]"),
            format!("[::ffff:0:{high:x}:{low:x}]"),
            format!("[::{dotted}]"),
            format!("[64:ff9b::{dotted}]"),
            format!("[64:ff9b:1::{high:x}:{low:x}]"),
            format!("[2002:{high:x}:{low:x}::1]"),
        ]
    }

    #[test]
    fn an_inner_address_passes_in_no_spelling() {
        let inner = "0.0.0.0 10.1.2.3 100.64.0.1 100.100.100.200 127.0.0.1 127.255.255.254 169.254.169.254 172.16.0.1
            172.31.255.255 192.0.0.192 192.0.2.1 192.168.1.1 198.18.0.1 224.0.0.1 240.0.0.1 255.255.255.255";
        let rules = EgressRules::default();
        let mut tried = 0;
        for address in inner.split_whitespace() {
            for host in spellings(address.parse().expect("an address")) {
                for url in [format!("http://{host}/"), format!("https://{host}:8443/x?y#z")] {
                    let refused = Url::parse(&url).map_or(true, |url| rules.judge_url(&url).is_err());
                    assert!(refused, "{url} is {address}");
                    tried += 1;
                }
            }
        }
        assert!(tried >= 592, "{tried} spellings");
        for url in spellings(Ipv4Addr::new(1, 1, 1, 1)).iter().take(15).map(|host| format!("http://{host}/")) {
            assert!(Url::parse(&url).is_ok_and(|url| rules.judge_url(&url).is_ok()), "{url} is a public address");
        }
    }

    #[test]
    fn odd_spellings_of_inner_addresses_are_seen_through() {
        let rules = EgressRules::default();
        for bad in [
            "ftp://example.com/",
            "file:///etc/passwd",
            "gopher://example.com",
            "data:text/plain,x",
            "javascript:1",
            "http://user@example.com/",
            "http://user:pass@example.com/",
            "http://example.com:0/",
            "http://127.0.0.1/",
            "http://127.1/",
            "http://2130706433/",
            "http://0x7f000001/",
            "http://0177.0.0.1/",
            "http://0x7f.1/",
            "http://127.0.0.1./",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:7f00:1]/",
            "http://[0:0:0:0:0:0:0:1]/",
            "http://①②⑦.⓪.⓪.①/",
            "http://127。0。0。1/",
            "http://0/",
            "http:\\\\127.0.0.1\\",
            "http:127.0.0.1",
            "http://169.254.169.254/latest/meta-data",
            "http://[64:ff9b::a9fe:a9fe]/",
            "http://[2002:a9fe:a9fe::]/",
        ] {
            let refused = Url::parse(bad).map_or(true, |url| rules.judge_url(&url).is_err());
            assert!(refused, "{bad}");
        }
        let listed = EgressRules {
            allow: vec![
                Allowed::parse("127.0.0.0/8").expect("a network"),
                Allowed::parse("Inner.example").expect("a host"),
            ],
            ..EgressRules::default()
        };
        assert!(listed.judge_url(&Url::parse("http://127.1:8080/").expect("a URL")).is_ok());
        assert!(listed.check_address("inner.EXAMPLE", "10.0.0.1".parse().expect("an address")).is_ok());
        assert!(listed.check_address("other.example", "10.0.0.1".parse().expect("an address")).is_err());
        assert_eq!(Allowed::parse("a b"), None);
    }
}
