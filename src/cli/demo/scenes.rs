//! What the demo plays: each scene says what happens, does it, and checks it.

use std::net::SocketAddr;

use super::api::Api;
use super::client::{Answer, pay, pay_and_hang_up};
use super::print::Printer;

struct Stage<'a> {
    printer: &'a Printer,
    proxy: SocketAddr,
    api: &'a Api,
    sent: usize,
    scene: usize,
}

/// Plays everything; an error where something did not go as promised.
pub(super) async fn play(printer: &Printer, proxy: SocketAddr, api: &Api) -> Result<(), String> {
    let mut stage = Stage {
        printer,
        proxy,
        api,
        sent: 0,
        scene: 0,
    };
    stage.first_and_duplicate().await?;
    stage.new_key().await?;
    stage.two_at_once().await?;
    stage.another_amount().await?;
    stage.hangs_up().await?;
    stage.upstream_dies().await?;
    let payments = api.payments();
    printer.closing(stage.sent, payments);
    expect(payments == 5, "5 payments")
}

impl Stage<'_> {
    async fn first_and_duplicate(&mut self) -> Result<(), String> {
        self.scene("A first payment");
        let first = self.pay("order-1", "{\"amount\":10}").await?;
        expect(first.status == 201 && !first.replayed, "an execution")?;
        self.scene("Its duplicate: the client never saw the answer and tries again");
        let again = self.pay("order-1", "{\"amount\":10}").await?;
        self.printer
            .says("The recorded answer. The API was not asked.");
        expect(
            again.replayed && again.body == first.body,
            "the same answer",
        )
    }

    async fn new_key(&mut self) -> Result<(), String> {
        self.scene("A new key is a new payment");
        let answer = self.pay("order-2", "{\"amount\":10}").await?;
        expect(answer.status == 201 && !answer.replayed, "an execution")
    }

    async fn two_at_once(&mut self) -> Result<(), String> {
        self.scene("Two at once: a double click, or two replicas of a worker");
        let (key, body) = ("order-3", "{\"amount\":20}");
        self.printer.sends(key, body);
        self.printer.sends(key, body);
        self.sent += 2;
        let (one, other) = tokio::join!(pay(self.proxy, key, body), pay(self.proxy, key, body));
        let (one, other) = (one?, other?);
        self.printer.gets(&one);
        self.printer.gets(&other);
        self.printer
            .says("One was executed, the other waited for its answer.");
        expect(
            one.body == other.body && one.replayed != other.replayed,
            "one execution",
        )
    }

    async fn another_amount(&mut self) -> Result<(), String> {
        self.scene("The same key with another amount is a mistake, and is told so");
        let answer = self.pay("order-3", "{\"amount\":2000}").await?;
        expect(answer.status == 422, "422")
    }

    async fn hangs_up(&mut self) -> Result<(), String> {
        self.scene("A client that hangs up while the API works, and retries");
        let (key, body) = ("order-4", "{\"amount\":30}");
        let before = self.api.payments();
        self.printer.sends(key, body);
        self.sent += 1;
        let begun = self.api.begun(before + 1);
        pay_and_hang_up(self.proxy, key, body, begun).await?;
        self.printer
            .says("(connection cut by the client; the payment runs on)");
        let again = self.pay(key, body).await?;
        self.printer
            .says("One payment: its answer was recorded although nobody was there.");
        expect(
            again.replayed && self.api.payments() == before + 1,
            "one payment",
        )
    }

    async fn upstream_dies(&mut self) -> Result<(), String> {
        self.scene("An API that dies in the middle of its answer");
        let (key, body) = ("order-5", "{\"amount\":40,\"then\":\"die\"}");
        let before = self.api.payments();
        let first = self.pay(key, body).await?;
        self.printer
            .says("Nobody can know from here whether the money was taken. So it says so,");
        self.printer
            .says("and does not guess: the retry is held, not repeated.");
        let again = self.pay(key, body).await?;
        self.printer
            .says("(An operator who looked it up resolves it: retrysafe key release|executed)");
        expect(
            first.status == 502 && again.status == 502 && self.api.payments() == before + 1,
            "held",
        )
    }

    fn scene(&mut self, title: &str) {
        self.scene += 1;
        self.printer.scene(self.scene, title);
    }

    async fn pay(&mut self, key: &str, body: &str) -> Result<Answer, String> {
        self.printer.sends(key, body);
        self.sent += 1;
        let answer = pay(self.proxy, key, body).await?;
        self.printer.gets(&answer);
        Ok(answer)
    }
}

fn expect(is: bool, what: &str) -> Result<(), String> {
    if is {
        Ok(())
    } else {
        Err(format!("this should have been {what}; please report it"))
    }
}
