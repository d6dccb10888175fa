use actix_web::{
    App, HttpServer,
    dev::ServerHandle,
    web::{PayloadConfig, ServiceConfig},
};

const LARGEST_BODY: usize = 64 << 20;

/// Serves on a free port of this machine until the handle stops it; the address.
pub(crate) fn serve<F>(name: &'static str, configure: F) -> (String, ServerHandle)
where
    F: Fn(&mut ServiceConfig) + Clone + Send + 'static,
{
    let server =
        HttpServer::new(move || App::new().app_data(PayloadConfig::new(LARGEST_BODY)).configure(configure.clone()))
            .workers(1)
            .disable_signals()
            .bind("127.0.0.1:0")
            .expect("a free port");
    let url = format!("http://{}", server.addrs()[0]);
    let server = server.run();
    let handle = server.handle();
    platform_core::spawn(name, server);
    (url, handle)
}
