use std::{fmt, marker::PhantomData, ops::Deref, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An opaque id, `^[A-Za-z0-9_-]{1,64}$` (contract 00 §2.1); `K` says what it identifies.
pub struct Id<K>(Arc<str>, PhantomData<fn() -> K>);

/// The account (workspace) that owns a record; its id is the `clientUID` of the API.
pub enum Account {}

/// Id of an account.
pub type AccountId = Id<Account>;

/// The text does not have the form of an id.
#[derive(Debug)]
pub struct IdError;

impl<K> Id<K> {
    /// A new time-ordered id, a lower-case `UUIDv7`.
    pub fn generate() -> Self {
        #[expect(clippy::disallowed_methods, reason = "the one place that makes ids")]
        let uuid = uuid::Uuid::now_v7();
        Self(uuid.hyphenated().to_string().into(), PhantomData)
    }

    /// A new time-ordered id of 24 lower-case hex digits, as ids of projects are (contract 05): the time and the
    /// rising random part of a `UUIDv7`, without its fixed bits.
    pub fn generate_hex() -> Self {
        #[expect(clippy::disallowed_methods, reason = "the one place that makes ids")]
        let uuid = uuid::Uuid::now_v7().as_u128();
        let (time, high, low) = (uuid >> 80, (uuid >> 64) & 0xfff, (uuid >> 26) & 0xf_ffff_ffff);
        Self(format!("{time:012x}{high:03x}{low:09x}").into(), PhantomData)
    }

    /// Checks the form; a path id that fails is simply not found.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let good =
            (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if good { Ok(Self(text.into(), PhantomData)) } else { Err(IdError) }
    }

    /// The id that a client or a row names. One that has not the form names nothing: it is looked for, and not found.
    pub fn named(text: &str) -> Self {
        Self(text.into(), PhantomData)
    }

    /// The id as stored and sent.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<K> Deref for Id<K> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<K> From<Id<K>> for String {
    fn from(id: Id<K>) -> Self {
        id.0.as_ref().to_owned()
    }
}

impl<K> Clone for Id<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0), PhantomData)
    }
}

impl<K> PartialEq for Id<K> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<K> Eq for Id<K> {}

impl<K> std::hash::Hash for Id<K> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl<K> fmt::Display for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<K> fmt::Debug for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<K> Serialize for Id<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de, K> Deserialize<'de> for Id<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(|IdError| serde::de::Error::custom("an id has 1 to 64 letters, digits, `-` or `_`"))
    }
}

impl<K> utoipa::PartialSchema for Id<K> {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .pattern(Some("^[A-Za-z0-9_-]{1,64}$"))
            .into()
    }
}

impl<K> utoipa::ToSchema for Id<K> {
    fn name() -> std::borrow::Cow<'static, str> {
        "Id".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_the_form_the_api_promises_and_rise_with_time() {
        let (first, second) = (AccountId::generate(), AccountId::generate());
        assert!(first.as_str() < second.as_str());
        assert!(AccountId::parse(first.as_str()).is_ok());
        let many: Vec<AccountId> = (0..1000).map(|_| AccountId::generate_hex()).collect();
        assert!(many.is_sorted_by(|a, b| a.as_str() < b.as_str()), "they rise, none twice");
        let is_hex =
            |id: &AccountId| id.as_str().len() == 24 && id.as_str().bytes().all(|b| b"0123456789abcdef".contains(&b));
        assert!(many.iter().all(is_hex), "{:?}", many[0]);
        for bad in ["", "a b", "ä", "a/b", "a\0", &"x".repeat(65)] {
            assert!(AccountId::parse(bad).is_err(), "{bad:?} was taken");
        }
    }
}
