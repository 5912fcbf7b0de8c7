//! The checks of `reports.json`: all must hold.

use serde_json::Value;

use super::Stage;
use super::upstream::When;
use super::words::{
    Check, Held, LINE_WORDS, blob, framings, has_status, header, hold, is_spelt, number, replayed,
    resp, snapshot, texts, unknown, within,
};
use crate::conformance::octets::shown;
use crate::conformance::wire::{Ending, Got, lines};
use crate::support::upstream::{Seen, Upstream};

impl Stage {
    /// Judges one check, by the word that says what it is about.
    pub(super) fn check(&self, check: &Check) -> Held {
        let text = |word: &str| check.get(word).and_then(Value::as_str);
        let only = || match check.len() {
            1 => Ok(()),
            _ => Err(unknown("beside the first", check)),
        };
        if let Some(ways) = check.get("any") {
            only()?;
            return self.any(ways, check);
        }
        if let Some(name) = text("resp") {
            return resp(&self.answer(name)?, check);
        }
        if let Some(names) = check.get("same").or(check.get("differ")) {
            return self.compare(&texts(names), check);
        }
        if let Some(name) = text("replayed") {
            return replayed(&self.answer(name)?, check);
        }
        if let Some(name) = text("group") {
            return self.group(name, check);
        }
        if let Some(wanted) = check.get("req") {
            return self.req(wanted, check);
        }
        if check.contains_key("rss_growth_max_kb") {
            only()?;
            let (first, last) = (self.rss_kb.first(), self.rss_kb.last());
            let grown = last.unwrap().saturating_sub(*first.unwrap());
            return hold(grown <= number(&check["rss_growth_max_kb"]), check, grown);
        }
        if let Some(name) = text("snapshot") {
            let lives = self.snapshots.get(name).ok_or(unknown(name, check))?;
            return snapshot(lives, check);
        }
        if let Some(exited) = check.get("exited") {
            only()?;
            return hold(self.exited == exited.as_bool(), check, self.exited);
        }
        self.counts(check)
    }

    /// Checks that count something at the upstream.
    fn counts(&self, check: &Check) -> Held {
        let count = |list: Option<&Value>| -> Result<When, String> {
            serde_json::from_value(list.unwrap().clone()).map_err(|error| error.to_string())
        };
        let (what, got) = if check.contains_key("hits") {
            let when = count(check.get("hits"))?;
            let seen = self.seen();
            let hits = seen.iter();
            let hits = hits.filter(|seen| when.matches(&seen.method, &seen.target));
            ("hits", hits.count())
        } else if let Some(path) = check.get("partial_hits") {
            let cut = self
                .upstream
                .as_ref()
                .map(Upstream::cut)
                .unwrap_or_default();
            let cut = cut
                .iter()
                .filter(|target| Some(target.as_str()) == path.as_str());
            ("partial_hits", cut.count())
        } else if check.contains_key("concurrency") {
            let when = count(check.get("concurrency"))?;
            let running = self.running.lock().unwrap();
            let kinds = running.iter();
            let peaks = kinds.filter(|((method, path), _)| when.matches(method, path));
            let peak = peaks.map(|(_, (_, peak))| *peak).max();
            ("concurrency", peak.unwrap_or(0))
        } else if let Some(limits) = check.get("conns") {
            let got = self.upstream.as_ref().map_or(0, Upstream::connections);
            let limits = limits.as_object().ok_or(unknown("conns", check))?;
            return within(limits, "", got, check);
        } else {
            return Err(unknown("first", check));
        };
        within(check, what, got, check)
    }

    fn seen(&self) -> Vec<Seen> {
        self.upstream
            .as_ref()
            .map(Upstream::seen)
            .unwrap_or_default()
    }

    fn answer(&self, name: &str) -> Result<Got, String> {
        let answers = self.answers.lock().unwrap();
        answers
            .get(name)
            .cloned()
            .ok_or(format!("no step is called {name}"))
    }

    fn any(&self, ways: &Value, check: &Check) -> Held {
        let mut faults = Vec::new();
        for way in ways.as_array().ok_or(unknown("any", check))? {
            let way = way.as_array().ok_or(unknown("any", check))?;
            let mut checks = way
                .iter()
                .map(|check| self.check(check.as_object().unwrap()));
            match checks.find_map(Result::err) {
                None => return Ok(()),
                Some(fault) => faults.push(fault),
            }
        }
        Err(format!("none of: {}", faults.join(" | ")))
    }

    fn compare(&self, names: &[&str], check: &Check) -> Held {
        let [one, other] = names else {
            return Err(unknown("two names", check));
        };
        let (one, other) = (self.answer(one)?, self.answer(other)?);
        let same = check.contains_key("same");
        if same {
            hold(other.ending == Ending::Whole, check, other.ending)?;
        }
        let fields = check.get("fields").map_or(vec!["body"], texts);
        for field in fields {
            let (equal, shown) = match field {
                "status" => (
                    one.status == other.status,
                    format!("{} and {}", one.status, other.status),
                ),
                "body" => (
                    one.body == other.body && one.total == other.total,
                    format!("{} and {}", shown(&one.body), shown(&other.body)),
                ),
                field => {
                    let name = field.strip_prefix("h:").ok_or(unknown(field, check))?;
                    let (one, other) = (one.lines(name), other.lines(name));
                    (one == other, format!("{one:?} and {other:?}"))
                }
            };
            hold(equal == same, check, shown)?;
        }
        for word in check.keys() {
            if !["same", "differ", "fields"].contains(&word.as_str()) {
                return Err(unknown(word, check));
            }
        }
        Ok(())
    }

    fn group(&self, name: &str, check: &Check) -> Held {
        let names = self.groups.get(name).ok_or(unknown(name, check))?;
        let all: Vec<Got> = names
            .iter()
            .map(|name| self.answer(name))
            .collect::<Result<_, _>>()?;
        let statuses: Vec<u16> = all.iter().map(|got| got.status).collect();
        for (word, value) in check {
            let holds = match word.as_str() {
                "group" => true,
                "status_in" => all
                    .iter()
                    .all(|got| got.ending == Ending::Whole && has_status(value, got.status)),
                "at_least" => value.as_object().unwrap().iter().all(|(status, least)| {
                    let found = statuses.iter().filter(|got| got.to_string() == *status);
                    found.count() as u64 >= number(least)
                }),
                "bodies_of_status" => {
                    let of_status = all.iter();
                    let of_status = of_status.filter(|got| u64::from(got.status) == number(value));
                    let mut bodies: Vec<&[u8]> = of_status.map(|got| &got.body[..]).collect();
                    bodies.dedup();
                    bodies.len() <= 1
                }
                "max_ms" => all
                    .iter()
                    .all(|got| got.took.as_millis() <= u128::from(number(value))),
                word => return Err(unknown(word, check)),
            };
            hold(holds, check, (word, &statuses))?;
        }
        Ok(())
    }

    fn req(&self, wanted: &Value, check: &Check) -> Held {
        let mut wanted = wanted.as_object().ok_or(unknown("req", check))?.clone();
        let nth = wanted.remove("nth").as_ref().map_or(1, number);
        let when: When =
            serde_json::from_value(wanted.into()).map_err(|error| error.to_string())?;
        let seen = self.seen();
        let mut matching = seen.iter();
        let mut matching = matching
            .by_ref()
            .filter(|seen| when.matches(&seen.method, &seen.target));
        let nth = usize::try_from(nth - 1).unwrap();
        let Some(seen) = matching.nth(nth) else {
            return hold(false, check, "no such request");
        };
        let (about_lines, rest): (Check, Check) = check
            .clone()
            .into_iter()
            .partition(|(word, _)| LINE_WORDS.contains(&word.as_str()));
        if let Some(name) = check.get("header").and_then(Value::as_str) {
            header(&about_lines, name, &lines(&seen.headers, name))?;
        }
        for (word, value) in &rest {
            let holds = match word.as_str() {
                "req" => true,
                "target" => value.as_str() == Some(&seen.target),
                "target_in" => texts(value).contains(&seen.target.as_str()),
                "body" => seen.body == blob(value)?,
                "one_framing" => framings(&seen.headers) <= 1,
                "raw_header_name" => is_spelt(&seen.headers, value),
                "no_framing" => framings(&seen.headers) == 0,
                word => return Err(unknown(word, check)),
            };
            hold(
                holds,
                check,
                (&seen.target, &seen.headers, shown(&seen.body)),
            )?;
        }
        Ok(())
    }
}
