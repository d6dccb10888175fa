use std::{path::PathBuf, sync::Arc};

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::{ServerConfig, crypto::aws_lc_rs::default_provider, pki_types::PrivateKeyDer};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

/// An https address whose connections go on, without TLS, to a server of this machine.
pub struct TlsProxy {
    url: String,
    certificate: PathBuf,
}

impl TlsProxy {
    /// Listens on a free port for a server at `http://<host>:<port>`.
    pub async fn start(server: &str) -> Self {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
        let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions of TLS")
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .expect("a key for that certificate");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let certificate = std::env::temp_dir().join(format!("tls-{}-{}.pem", std::process::id(), address.port()));
        std::fs::write(&certificate, cert.pem()).expect("a file");
        let (acceptor, server) = (TlsAcceptor::from(Arc::new(config)), server.replace("http://", ""));
        platform_core::spawn("TLS proxy", async move {
            while let Ok((client, _)) = listener.accept().await {
                let (acceptor, server) = (acceptor.clone(), server.clone());
                platform_core::spawn("TLS connection", async move {
                    let Ok(mut client) = acceptor.accept(client).await else { return };
                    let Ok(mut server) = TcpStream::connect(server).await else { return };
                    // Either end may just go away.
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self { url: format!("https://{address}"), certificate }
    }

    /// Its address, without a path.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The file with its certificate, for whoever is to trust it (`SSL_CERT_FILE`).
    pub fn certificate(&self) -> &str {
        self.certificate.to_str().expect("a path")
    }
}

impl Drop for TlsProxy {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.certificate);
    }
}
