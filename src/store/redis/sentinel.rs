//! Whom the sentinels name: the master of now, and the news that it is another one.
//!
//! All sentinels are asked at once, and the place that most of those name who answer in time is
//! taken: one that was cut off from the others is outvoted. Invariant: a connection is used only if
//! its server says itself that it is a master (`connection.rs` asks it).
//!
//! A watch listens for `+switch-master` at one of them and asks all of them each second, so that
//! connections to a master that was demoted behind our back are left.
//!
//! Deliberately absent: promoting anybody. That is the sentinels' affair.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, Value};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout_at};

use super::address::Place;
use super::errors;
use super::link::{Access, End};
use crate::store::background::Task;
use crate::store::{StoreError, StoreErrorKind};

/// Between two looks while nothing is heard.
const LOOK: Duration = Duration::from_secs(1);

/// The sentinels of one master, for one process.
#[derive(Debug)]
pub(super) struct Sentinels {
    access: Arc<Access>,
    places: Vec<Place>,
    master: String,
    named: Mutex<Option<Place>>,
    /// Listens to them.
    watch: Task,
}

impl Sentinels {
    pub(super) fn new(access: Arc<Access>, places: Vec<Place>, master: String) -> Arc<Self> {
        Arc::new(Self {
            access,
            places,
            master,
            named: Mutex::default(),
            watch: Task::default(),
        })
    }

    fn named(&self) -> MutexGuard<'_, Option<Place>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another place than this one was named since.
    pub(super) fn name_another(&self, place: &Place) -> bool {
        self.named().as_ref().is_some_and(|named| named != place)
    }

    /// The master of now, asked anew.
    pub(super) async fn master(self: &Arc<Self>) -> Result<Place, StoreError> {
        // It ends when the store does (`stop`): it holds what it is a part of.
        self.watch.ensure(|| watch(Arc::clone(self)));
        let named = self.ask().await?;
        self.note(&named);
        Ok(named)
    }

    fn note(&self, named: &Place) {
        let before = self.named().replace(named.clone());
        if before.is_some_and(|before| before != *named) {
            tracing::info!(event = "store_master_changed", master = %named);
        }
    }

    /// Ends the watch.
    pub(super) fn stop(&self) {
        self.watch.end();
    }

    /// Asks everybody and counts. Where most of them agree the others are not waited for; where they
    /// do not, or most are out of reach, it is who has most voices when the time is up.
    async fn ask(self: &Arc<Self>) -> Result<Place, StoreError> {
        let mut questions = JoinSet::new();
        for place in self.places.clone() {
            let sentinels = Arc::clone(self);
            questions.spawn(async move { sentinels.ask_one(&place).await });
        }
        let most = self.places.len() / 2 + 1;
        let until = Instant::now() + self.access.timeout;
        let mut votes: Vec<(Place, usize)> = Vec::new();
        let mut last = errors::no_node();
        while let Ok(Some(answer)) = timeout_at(until, questions.join_next()).await {
            match answer {
                Ok(Ok(place)) => match votes.iter_mut().find(|(named, _)| *named == place) {
                    Some((_, count)) => *count += 1,
                    None => votes.push((place, 1)),
                },
                Ok(Err(error)) => last = error,
                Err(_) => {}
            }
            if votes.iter().any(|(_, count)| *count >= most) {
                break;
            }
        }
        let leading = votes.into_iter().max_by_key(|(_, count)| *count);
        leading.map(|(place, _)| place).ok_or(last)
    }

    async fn ask_one(&self, place: &Place) -> Result<Place, StoreError> {
        let ask = redis::cmd("SENTINEL")
            .arg("GET-MASTER-ADDR-BY-NAME")
            .arg(&self.master)
            .to_owned();
        let end = End::Server(place.clone());
        let mut said = Value::Nil;
        // The password is only for who demands it.
        for login in [RedisConnectionInfo::default(), self.login()] {
            let config = AsyncConnectionConfig::new();
            let (connection, _driver) = self.access.connect(&end, &login, config).await?;
            let answer = connection.clone().send_packed_command(&ask).await;
            said =
                answer.map_err(|error| errors::not_connected(&self.access.shown(&end), &error))?;
            match &said {
                Value::ServerError(error) if errors::code(error) == "NOAUTH" => {}
                _ => break,
            }
        }
        match said {
            Value::ServerError(error) => Err(errors::answered(&error)),
            Value::Array(parts) => place_in(&parts).ok_or_else(|| errors::odd("SENTINEL")),
            _ => {
                let message = format!(
                    "the sentinel at {} knows no master by the name {}",
                    self.access.shown(&end),
                    self.master
                );
                Err(StoreError::not_sent(StoreErrorKind::Unavailable, message))
            }
        }
    }

    fn login(&self) -> RedisConnectionInfo {
        self.access.login.clone().set_db(0)
    }

    /// Listens at one sentinel until it is gone.
    async fn follow(self: &Arc<Self>, place: &Place) -> Result<(), StoreError> {
        let news = Arc::new(Notify::new());
        let heard = Arc::clone(&news);
        let config = AsyncConnectionConfig::new().set_push_sender(move |_| {
            heard.notify_one();
            Ok::<_, Infallible>(())
        });
        let end = End::Server(place.clone());
        let login = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3);
        let made = self.access.connect(&end, &login, config.clone()).await;
        let (mut connection, mut driver) = if let Ok(made) = made {
            made
        } else {
            self.access.connect(&end, &self.login(), config).await?
        };
        let subscribed = connection.subscribe("+switch-master").await;
        subscribed.map_err(|error| errors::not_connected(&self.access.shown(&end), &error))?;
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = driver.ended() => return Ok(()),
                () = news.notified() => {}
                _ = ticks.tick() => {}
            }
            self.look().await;
        }
    }

    async fn look(self: &Arc<Self>) {
        match self.ask().await {
            Ok(named) => self.note(&named),
            Err(error) => tracing::debug!("no sentinel names a master: {error}"),
        }
    }
}

/// Never ends by itself.
async fn watch(sentinels: Arc<Sentinels>) {
    for place in sentinels.places.iter().cycle() {
        if let Err(error) = sentinels.follow(place).await {
            tracing::debug!("no news from a sentinel: {error}");
        }
        sentinels.look().await;
        sleep(LOOK / 4).await;
    }
}

/// Host and port, as text.
fn place_in(parts: &[Value]) -> Option<Place> {
    let [Value::BulkString(host), Value::BulkString(port)] = parts else {
        return None;
    };
    Some(Place {
        host: std::str::from_utf8(host).ok()?.to_owned(),
        port: std::str::from_utf8(port).ok()?.parse().ok()?,
    })
}
