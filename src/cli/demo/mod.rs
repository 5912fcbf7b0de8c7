//! `retrysafe demo`: a sample payments API, the proxy and an embedded store in one process, and a
//! client that plays what goes wrong in real life. Needs no file; every request really goes over
//! loopback.

mod api;
mod client;
mod print;
mod scenes;

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::{FAILED, OK};
use crate::app::{App, Options};
use crate::config::{Environment, parse};
use api::Api;
use print::Printer;

/// Answers the exit code.
pub(super) fn demo(keep: bool) -> u8 {
    let runtime = match super::runtime() {
        Ok(runtime) => runtime,
        Err(code) => return code,
    };
    match runtime.block_on(play(keep)) {
        Ok(()) => OK,
        Err(error) => {
            eprintln!("retrysafe demo: {error}");
            FAILED
        }
    }
}

async fn play(keep: bool) -> Result<(), String> {
    let api = Api::start()
        .await
        .map_err(|error| format!("the sample API: {error}"))?;
    let (stop, stopped) = oneshot::channel::<()>();
    let (proxy, running) = start_proxy(api.address, stopped).await?;
    let printer = Printer::new();
    printer.opening(proxy, api.address);
    let told = scenes::play(&printer, proxy, &api).await;
    if told.is_ok() && keep {
        Printer::keep(proxy);
        let _interrupted = tokio::signal::ctrl_c().await.is_ok();
    }
    let _running = stop.send(()).is_ok();
    running.await.map_err(|error| error.to_string())??;
    told
}

type Running = tokio::task::JoinHandle<Result<(), String>>;

/// The real proxy, on the embedded store and free ports.
async fn start_proxy(
    upstream: SocketAddr,
    stopped: oneshot::Receiver<()>,
) -> Result<(SocketAddr, Running), String> {
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nthreads = 1\n[upstream]\nurl = \"http://{upstream}\"\n\
         [store]\nurl = \"memory:\"\n[health]\nlisten = \"127.0.0.1:0\"\n"
    );
    let (config, _warnings) =
        parse(&text, "demo", &Environment::new()).map_err(|errors| errors.to_string())?;
    let app = App::bind(config, Options::default())
        .await
        .map_err(|error| error.to_string())?;
    let address = app.proxy_addr;
    let running = tokio::spawn(async move {
        let ended = async {
            let _stopped = stopped.await.is_err();
        };
        app.run(ended)
            .await
            .map(|_| ())
            .map_err(|error| error.to_string())
    });
    Ok((address, running))
}

/// A listener on a free loopback port.
async fn listen() -> std::io::Result<TcpListener> {
    TcpListener::bind(("127.0.0.1", 0)).await
}
