//! Generated conversations, directly and through the proxy: the upstream must see the same, and the
//! client must get the same, but for the fields that a proxy makes anew (R26 to R28).

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::support::client::{Answer, Client};
use crate::support::sidecar::sidecar;
use crate::support::upstream::{Act, Seen, Upstream};

const CASES: usize = 2_000;
/// Requests on one client connection.
const TURNS: usize = 20;

/// Numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    /// Below `sides`.
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).unwrap() % sides
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.roll(from.len())]
    }

    fn text(&mut self, alphabet: &str, most: usize) -> String {
        let letters: Vec<char> = alphabet.chars().collect();
        (0..self.roll(most + 1))
            .map(|_| letters[self.roll(letters.len())])
            .collect()
    }
}

/// One conversation.
struct Case {
    method: &'static str,
    request: Vec<u8>,
    response: Vec<u8>,
}

fn fields(dice: &mut Dice, text: &mut String) {
    for _ in 0..dice.roll(6) {
        let name = dice.pick(&[
            "X-One",
            "x-two",
            "Accept",
            "X-Three",
            "If-Match",
            "Range",
            "Accept-Language",
        ]);
        let value = dice.text("abz019 ,;=\"'()/\\<>@{}[]?%\u{e9}\u{ff}\u{a0}", 24);
        write!(text, "{name}: {}\r\n", value.trim()).unwrap();
    }
}

fn body(dice: &mut Dice) -> String {
    let length = dice.pick(&[&0_usize, &1, &7, &100, &4_000, &70_000]);
    let letter = dice.pick(&["a", "\n", "\u{e9}", "0\r\n\r\n"]);
    letter.repeat(*length / letter.chars().count())
}

fn framed(dice: &mut Dice, text: &mut String, body: &str) {
    if dice.roll(2) == 0 {
        write!(
            text,
            "Content-Length: {}\r\n\r\n{body}",
            body.chars().count()
        )
        .unwrap();
        return;
    }
    text.push_str("Transfer-Encoding: chunked\r\n\r\n");
    let letters: Vec<char> = body.chars().collect();
    for chunk in letters.chunks(1 + dice.roll(3_000)) {
        let piece: String = chunk.iter().collect();
        write!(text, "{:x}\r\n{piece}\r\n", chunk.len()).unwrap();
    }
    text.push_str("0\r\n\r\n");
}

fn latin1(text: &str) -> Vec<u8> {
    text.chars()
        .map(|letter| u8::try_from(u32::from(letter)).unwrap())
        .collect()
}

fn case(dice: &mut Dice, number: usize, keyed: bool) -> Case {
    let methods = [
        "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW", "REPORT",
    ];
    let method = dice.pick(&methods);
    // Covered routes refuse encoded slashes and dot segments (R2).
    let (letters, encoded) = if keyed {
        ("ab/-_~!$&'()*+,;=:@%", "%C3")
    } else {
        ("ab/.-_~!$&'()*+,;=:@%", "%2f")
    };
    let path = dice.text(letters, 12).replace('%', encoded);
    let query = dice.text("ab/?=&;%+", 12).replace('%', "%e9");
    let mark = if dice.roll(2) == 0 { "?" } else { "" };
    let query = if mark.is_empty() {
        String::new()
    } else {
        query
    };
    let mut text =
        format!("{method} /{path}{mark}{query} HTTP/1.1\r\nHost: api.test\r\nX-Case: {number}\r\n");
    fields(dice, &mut text);
    let has_body = !["GET", "HEAD", "OPTIONS"].contains(&method) && dice.roll(4) > 0;
    if has_body {
        let body = body(dice);
        framed(dice, &mut text, &body);
    } else {
        text.push_str("\r\n");
    }
    let request = latin1(&text);
    let status = dice.pick(&[
        &200, &201, &202, &204, &301, &304, &400, &404, &418, &500, &503,
    ]);
    let mut text =
        format!("HTTP/1.1 {status} Some Reason\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
    fields(dice, &mut text);
    for _ in 0..dice.roll(3) {
        write!(text, "Set-Cookie: a={}\r\n", dice.roll(9)).unwrap();
    }
    if method == "HEAD" || [204, 304].contains(status) {
        text.push_str("\r\n");
    } else {
        let body = body(dice);
        framed(dice, &mut text, &body);
    }
    Case {
        method,
        request,
        response: latin1(&text),
    }
}

/// The fields of a message but for those that each hop makes anew.
fn kept(fields: &[(String, String)]) -> Vec<(String, String)> {
    const OWN: [&str; 10] = [
        "connection",
        "content-length",
        "transfer-encoding",
        "via",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "idempotency-attempt",
        "idempotency-key",
        "te",
    ];
    let fields = fields
        .iter()
        .map(|(name, value)| (name.to_lowercase(), value.clone()));
    let mut kept: Vec<_> = fields
        .filter(|(name, _)| !OWN.contains(&name.as_str()))
        .collect();
    // Names in any order, the lines of one name in theirs.
    kept.sort_by(|(one, _), (other, _)| one.cmp(other));
    kept
}

/// Plays all cases, with a key of its own for each if `keyed`.
fn play(cases: &[Case], addr: SocketAddr, keyed: bool) -> Vec<Answer> {
    let mut answers = Vec::new();
    for (block, turns) in cases.chunks(TURNS).enumerate() {
        let mut client = Client::connect(addr);
        for (turn, case) in turns.iter().enumerate() {
            let mut request = case.request.clone();
            if keyed {
                let key = format!("Idempotency-Key: k-{}\r\n", block * TURNS + turn);
                let at = request.windows(2).position(|pair| pair == b"\r\n").unwrap() + 2;
                request.splice(at..at, key.into_bytes());
            }
            client.write(&request);
            let answer = client.answer_to(case.method);
            let sent = String::from_utf8_lossy(&case.request);
            answers.push(answer.unwrap_or_else(|| panic!("no whole answer to\n{sent}")));
        }
    }
    answers
}

fn upstream(cases: &Arc<Vec<Case>>) -> Upstream {
    let cases = cases.clone();
    Upstream::start(move |seen, _| {
        let number: usize = seen.header("x-case").unwrap().parse().unwrap();
        vec![Act::Send(cases[number].response.clone())]
    })
}

fn compare(cases: &[Case], direct: &[Answer], through: &[Answer], seen: (&[Seen], &[Seen])) {
    assert_eq!((direct.len(), through.len()), (CASES, CASES));
    assert_eq!((seen.0.len(), seen.1.len()), (CASES, CASES));
    for number in 0..CASES {
        let sent = String::from_utf8_lossy(&cases[number].request).into_owned();
        let (one, other) = (&seen.0[number], &seen.1[number]);
        assert_eq!(
            (&other.method, &other.target),
            (&one.method, &one.target),
            "{sent}"
        );
        assert!(
            other.body == one.body,
            "case {number}: another body\n{sent}"
        );
        assert_eq!(kept(&other.headers), kept(&one.headers), "{sent}");
        let (one, other) = (&direct[number], &through[number]);
        assert_eq!(other.status, one.status, "{sent}");
        assert!(
            other.body == one.body,
            "case {number}: another answer\n{sent}"
        );
        assert_eq!(kept(&other.headers), kept(&one.headers), "{sent}");
        assert!(
            other.header("content-length").is_none() || other.header("transfer-encoding").is_none()
        );
    }
}

#[test]
fn two_thousand_conversations_are_the_same_directly_and_through_the_proxy() {
    for (keyed, rest) in [
        (false, "[policy]\nmode = \"off\""),
        // Covered: everything is recorded, whatever it says.
        (true, "[policy]\nrelease_statuses = []"),
    ] {
        let mut dice = Dice(0x5eed_0001 + u64::from(keyed));
        let cases: Arc<Vec<_>> = Arc::new(
            (0..CASES)
                .map(|number| case(&mut dice, number, keyed))
                .collect(),
        );
        let (plain, proxied) = (upstream(&cases), upstream(&cases));
        let sidecar = sidecar(proxied.addr, rest);
        let direct = play(&cases, plain.addr, false);
        let through = play(&cases, sidecar.addr, keyed);
        compare(&cases, &direct, &through, (&plain.seen(), &proxied.seen()));
    }
}
