//! How wire types are read, all in one place: an object is an object and never a list of its fields, a number without
//! a fraction is whole, and names of an enumeration match in any case (contract 00 §2.6, §2.8).

use serde::{
    Deserializer,
    de::{
        DeserializeSeed, EnumAccess, Error, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
        value::StrDeserializer,
    },
};

/// Whole numbers above this, a fraction tells from their neighbours no more.
const LARGEST: f64 = 9_007_199_254_740_992.0;
/// Characters of a wrong name that an answer repeats.
const MAX_NAME: usize = 64;

/// A deserializer, and what it hands on, that reads strictly.
pub struct Strict<T>(pub T);

macro_rules! forward {
    ($takes:expr; $($name:ident)*) => {
        $(fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.0.$name(Shape { visitor, takes: $takes })
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<D> {
    type Error = D::Error;

    forward! {
        Takes::Any;
        deserialize_any deserialize_bool deserialize_f32 deserialize_f64 deserialize_char deserialize_str
        deserialize_string deserialize_bytes deserialize_byte_buf deserialize_option deserialize_unit deserialize_seq
        deserialize_map deserialize_identifier deserialize_ignored_any
    }
    forward! {
        Takes::WholeNumber;
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_struct(name, fields, Shape { visitor, takes: Takes::Object })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_str(Name { variants, visitor })
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_unit_struct(name, Shape::any(visitor))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_newtype_struct(name, Shape::any(visitor))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple(len, Shape::any(visitor))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple_struct(name, len, Shape::any(visitor))
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Strict<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Strict(deserializer))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Strict(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Strict(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

/// What a type takes of all that JSON has.
#[derive(Clone, Copy, PartialEq)]
enum Takes {
    Any,
    Object,
    /// 3.0 is one, too: some clients have no other numbers.
    WholeNumber,
}

/// What a type makes of a value, as far as it takes it.
struct Shape<V> {
    visitor: V,
    takes: Takes,
}

impl<V> Shape<V> {
    fn any(visitor: V) -> Self {
        Self { visitor, takes: Takes::Any }
    }
}

macro_rules! visit {
    ($($name:ident: $value:ty,)*) => {
        $(fn $name<E: Error>(self, value: $value) -> Result<V::Value, E> {
            self.visitor.$name(value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Shape<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.takes == Takes::Object { f.write_str("an object") } else { self.visitor.expecting(f) }
    }

    visit! {
        visit_bool: bool, visit_i8: i8, visit_i16: i16, visit_i32: i32, visit_i64: i64, visit_i128: i128,
        visit_u8: u8, visit_u16: u16, visit_u32: u32, visit_u64: u64, visit_u128: u128, visit_f32: f32, visit_char: char, visit_str: &str, visit_borrowed_str: &'de str, visit_string: String,
        visit_bytes: &[u8], visit_borrowed_bytes: &'de [u8], visit_byte_buf: Vec<u8>,
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<V::Value, E> {
        let is_whole = self.takes == Takes::WholeNumber && value.fract() == 0.0 && value.abs() <= LARGEST;
        #[expect(clippy::cast_possible_truncation, reason = "it is whole, and within 2^53")]
        if is_whole { self.visitor.visit_i64(value as i64) } else { self.visitor.visit_f64(value) }
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Strict(deserializer))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_newtype_struct(Strict(deserializer))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<V::Value, A::Error> {
        if self.takes == Takes::Object {
            return Err(Error::invalid_type(Unexpected::Seq, &self));
        }
        self.visitor.visit_seq(Strict(seq))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(Strict(map))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(data)
    }
}

/// What an enumeration makes of text.
struct Name<V> {
    variants: &'static [&'static str],
    visitor: V,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Name<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "one of {}", self.variants.join(", "))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<V::Value, E> {
        let Some(variant) = self.variants.iter().find(|variant| variant.eq_ignore_ascii_case(text)) else {
            let shown: String = text.chars().take(MAX_NAME).collect();
            return Err(Error::unknown_variant(&shown, self.variants));
        };
        let name: StrDeserializer<'_, E> = (*variant).into_deserializer();
        self.visitor.visit_enum(name)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::{Value, json, value::RawValue};

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "UPPERCASE")]
    enum Method {
        Get,
        Post,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Inner {
        depth: u32,
        flag: bool,
        least: Option<i64>,
    }

    #[derive(Debug, Deserialize)]
    struct Outer {
        method: Method,
        #[serde(default)]
        inner: Inner,
        #[serde(default)]
        many: Vec<Inner>,
        #[serde(default)]
        by_name: BTreeMap<String, Option<Inner>>,
        #[serde(default)]
        any: Value,
        #[serde(default)]
        raw: Option<Box<RawValue>>,
    }

    fn read(value: &Value) -> Result<Outer, String> {
        let text = value.to_string();
        let from_text = Outer::deserialize(Strict(&mut serde_json::Deserializer::from_str(&text)));
        let from_value = Outer::deserialize(Strict(value.clone()));
        // A raw value is text, which a value no longer has.
        if value.get("raw").is_none() {
            assert_eq!(from_text.is_ok(), from_value.is_ok(), "{value}");
        }
        from_text.map_err(|error| error.to_string())
    }

    #[test]
    fn an_array_stands_for_no_object_however_deep_enumerations_match_in_any_case_and_3_0_is_whole() {
        let read_whole = read(&json!({
            "method": "gEt", "inner": {"depth": 3.0}, "many": [{"flag": true, "least": -2.0}], "by_name": {"a": {"depth": 1}, "b": null},
            "any": [[1, true]], "raw": [1, true],
        }));
        let outer = read_whole.expect("it fits");
        assert_eq!((outer.method, outer.inner.depth, outer.many[0].flag), (Method::Get, 3, true));
        assert_eq!(outer.many[0].least, Some(-2));
        for depth in [json!(3.5), json!(-3.0), json!(1e300)] {
            read(&json!({"method": "GET", "inner": {"depth": depth}})).expect_err("no such number");
        }
        assert_eq!((outer.by_name["a"].as_ref().expect("one").depth, &outer.by_name["b"]), (1, &None));
        assert_eq!((outer.any, outer.raw.expect("raw").get()), (json!([[1, true]]), "[1,true]"));
        for wrong in [
            json!({"method": "GET", "inner": [3, true]}),
            json!({"method": "GET", "inner": []}),
            json!({"method": "GET", "many": [[3, true]]}),
            json!({"method": "GET", "by_name": {"a": [3, true]}}),
            json!(["GET", {}]),
        ] {
            let reason = read(&wrong).expect_err("an array");
            assert!(reason.contains("invalid type: sequence, expected an object"), "{wrong}: {reason}");
        }
        for (method, reason) in [
            (json!("patch"), "unknown variant `patch`, expected `GET` or `POST`"),
            (json!({"GET": null}), "invalid type: map, expected one of GET, POST"),
            (json!(5), "invalid type: integer `5`, expected one of GET, POST"),
        ] {
            let given = read(&json!({"method": method})).expect_err("no method");
            assert!(given.contains(reason), "{given}");
        }
    }
}
