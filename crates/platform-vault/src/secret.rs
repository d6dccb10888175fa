use std::fmt;

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::openapi::{KnownFormat, ObjectBuilder, RefOr, Schema, SchemaFormat, schema::Type};

/// What stands in the place of a secret in every answer (contract 00 §2.13).
pub const MASK: &str = "••••••••";

/// A text that is kept from answers, logs and stored JSON: it can be read in, and shows itself as [`MASK`].
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// The text itself, for the one who needs it.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    /// It is the mask that came back: the stored value is meant.
    pub fn is_mask(&self) -> bool {
        self.expose() == MASK
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(MASK)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

impl utoipa::PartialSchema for Secret {
    fn schema() -> RefOr<Schema> {
        let format = SchemaFormat::KnownFormat(KnownFormat::Password);
        ObjectBuilder::new().schema_type(Type::String).format(Some(format)).into()
    }
}

impl utoipa::ToSchema for Secret {
    fn name() -> std::borrow::Cow<'static, str> {
        "Secret".into()
    }
}
