//! The only way out: HTTP to addresses that a client, a model or an app can influence (contract 00 §9).
//!
//! **Owns** no table and no endpoint. **Needs** nothing but the network.
//!
//! **Invariants**: http or https, no user info; a name is resolved once, every address it has must
//! be global unicast, and the address that was judged is the one that is dialled; redirects are
//! judged again, and credentials do not follow to another origin; a response is read up to a bound
//! and never decompressed; no proxy of the environment is used.
//!
//! ```no_run
//! # use platform_egress::{Egress, EgressRules};
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let egress = Egress::new(EgressRules::default())?;
//! let page = egress.get("https://example.com/logo.png").await?;
//! println!("{} bytes of {}", page.bytes.len(), page.media_type);
//! # Ok(()) }
//! ```

mod client;
pub mod code;
mod judge;

pub use client::{Egress, EgressError, EgressPlace, Fetched, FormPart, Outgoing, Payload, sensitive};
pub use judge::{Allowed, EgressRules, is_global_unicast};
pub use reqwest::{Client as HttpClient, Error as HttpError, Method, Response as HttpResponse, header};
pub use url::{Origin, Url};
