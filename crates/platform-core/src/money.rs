use std::ops::{Add, AddAssign};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// US dollars as integer nano-dollars; a JSON number of at most 9 decimals (contract 00 §2.5).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Money(i64);

impl Money {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// From an integer number of nano-dollars.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// The integer number of nano-dollars.
    pub const fn nanos(self) -> i64 {
        self.0
    }

    /// What `tokens` cost at `self` per million tokens, rounded half to even on the nano-dollar.
    #[must_use]
    pub fn per_million(self, tokens: u64) -> Self {
        let product = i128::from(self.0) * i128::from(tokens);
        let (quotient, rest) = (product / 1_000_000, product % 1_000_000);
        let up = rest > 500_000 || (rest == 500_000 && quotient % 2 == 1);
        Self(i64::try_from(quotient + i128::from(up)).unwrap_or(i64::MAX))
    }
}

impl Add for Money {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Money {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::iter::Sum for Money {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

impl Serialize for Money {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 % 1_000_000_000 == 0 {
            return serializer.serialize_i64(self.0 / 1_000_000_000);
        }
        #[expect(clippy::cast_precision_loss, reason = "exact to 9 decimals below 4 million dollars")]
        serializer.serialize_f64(self.0 as f64 / 1e9)
    }
}

impl<'de> Deserialize<'de> for Money {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let dollars = f64::deserialize(deserializer)?;
        #[expect(clippy::cast_possible_truncation, reason = "saturates, and prices are small")]
        Ok(Self((dollars * 1e9).round_ties_even() as i64))
    }
}

impl utoipa::PartialSchema for Money {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        utoipa::openapi::ObjectBuilder::new().schema_type(utoipa::openapi::schema::Type::Number).into()
    }
}

impl utoipa::ToSchema for Money {
    fn name() -> std::borrow::Cow<'static, str> {
        "Money".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_multiply_in_integers_and_round_half_to_even() {
        let price = Money::from_nanos(1);
        assert_eq!(price.per_million(500_000).nanos(), 0);
        assert_eq!(price.per_million(1_500_000).nanos(), 2);
        assert_eq!(Money::from_nanos(2_500_000_000).per_million(1_000).nanos(), 2_500_000);
    }

    #[test]
    fn money_survives_the_wire() {
        for nanos in [0, 1, 123_456_789, 1_000_000_000, 4_194_303_999_999_999] {
            let json = serde_json::to_string(&Money::from_nanos(nanos)).expect("serializes");
            let back: Money = serde_json::from_str(&json).expect("parses");
            assert_eq!(back.nanos(), nanos, "{json}");
        }
        assert_eq!(serde_json::to_string(&Money::from_nanos(1_234_567)).expect("serializes"), "0.001234567");
    }
}
