use crate::{Code, Error, Result};

/// Which version of a record a change expects (RFC 9110 §13.1.1, contract 00 §6).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Precondition {
    /// Any: the last write wins.
    #[default]
    None,
    /// One of these.
    Versions(Vec<i64>),
}

impl Precondition {
    /// Reads an `If-Match` header: `*`, or entity tags in quotes. A weak tag never matches.
    pub fn parse(header: &str) -> Result<Self> {
        if header.trim() == "*" {
            return Ok(Self::None);
        }
        let mut versions = Vec::new();
        for tag in header.split(',').map(str::trim) {
            let (weak, tag) = tag.strip_prefix("W/").map_or((false, tag), |tag| (true, tag));
            let Some(value) = tag.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
                let message = "If-Match must be `*` or entity tags as they came in ETag, such as \"3\".";
                return Err(Error::new(Code::BAD_REQUEST, message));
            };
            versions.extend(value.parse::<i64>().ok().filter(|_| !weak));
        }
        Ok(Self::Versions(versions))
    }

    /// `PRECONDITION_FAILED` unless `current` is expected.
    pub fn check(&self, current: i64) -> Result<()> {
        match self {
            Self::Versions(expected) if !expected.contains(&current) => {
                let message = "The record was changed meanwhile; read it again, then change it.";
                Err(Error::new(Code::PRECONDITION_FAILED, message).with("current", current))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_strong_tag_of_the_current_version_matches() {
        let check = |header: &str| Precondition::parse(header).expect("a header").check(3).is_ok();
        assert!(check("\"3\"") && check("*") && check("\"1\", \"3\""));
        assert!(!check("\"2\"") && !check("W/\"3\"") && !check("\"three\""));
        assert!(Precondition::parse("3").is_err() && Precondition::parse("").is_err());
        assert!(Precondition::None.check(9).is_ok());
    }
}
