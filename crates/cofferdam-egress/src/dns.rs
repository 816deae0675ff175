//! The sandbox's resolver. It answers from the rules alone, and asks no other server: a look-up carries nothing out.

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};

use parking_lot::Mutex;

use crate::denials::Denials;
use crate::names::Names;
use crate::rules::{Query, Refusal, Rules};

/// The seconds for which a guest may keep an answer. Rules may change.
const TTL: u32 = 5;

/// The maximum length of a query.
pub const MAX_QUERY: usize = 512;
const HEADER: usize = 12;

/// Answers a query. Returns `None` if it is not answered at all.
pub fn answer(query: &[u8], rules: &Rules, names: &Mutex<Names>, denials: &Denials) -> Option<Vec<u8>> {
    if !is_small(query) {
        return None;
    }
    let query = Message::from_vec(query).ok()?;
    let (id, op_code) = (query.metadata.id, query.metadata.op_code);
    if query.metadata.message_type != MessageType::Query {
        return None;
    }
    let failed = |code| Message::error_msg(id, op_code, code).to_vec().ok();
    let [question] = &query.queries[..] else { return failed(ResponseCode::FormErr) };
    if op_code != OpCode::Query || question.query_class() != DNSClass::IN {
        return failed(ResponseCode::NotImp);
    }
    let mut response = Message::response(id, op_code);
    response.metadata.recursion_desired = query.metadata.recursion_desired;
    response.metadata.recursion_available = true;
    response.add_query(question.clone());
    let name = question.name().to_ascii();
    match rules.lookup(&name) {
        Ok(Query::Name(target)) if question.query_type() == RecordType::A => match names.lock().address(&target.name) {
            Some(address) => {
                response.add_answer(Record::from_rdata(question.name().clone(), TTL, RData::A(A(address))));
            }
            None => response.metadata.response_code = ResponseCode::ServFail,
        },
        // The name has addresses of IPv4 only, and no other records.
        Ok(Query::Name(_)) => {}
        Ok(Query::Address(_)) => response.metadata.response_code = ResponseCode::NXDomain,
        Err(refusal) => {
            // Resolvers and package managers ask unasked for names of addresses and of services.
            let is_unasked = question.query_type() == RecordType::PTR || name.starts_with('_');
            if !is_unasked && refusal == Refusal::NotListed {
                let name = name.trim_end_matches('.').to_ascii_lowercase();
                denials.note(
                    format_args!("the look-up of {name}"),
                    format_args!("{refusal}; --net {name}:PORT would allow it"),
                );
            }
            response.metadata.response_code = ResponseCode::NXDomain;
        }
    }
    response.to_vec().ok()
}

/// Returns true if a message is short and has one question, no answers, and at most one additional record. Others cost
/// much to parse, and no resolver sends them.
fn is_small(message: &[u8]) -> bool {
    let count = |at: usize| u16::from_be_bytes([message[at], message[at + 1]]);
    (HEADER..=MAX_QUERY).contains(&message.len()) && count(4) == 1 && count(6) == 0 && count(8) == 0 && count(10) <= 1
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::str::FromStr;

    use cofferdam_contract::NetworkPolicy;
    use hickory_proto::op::Query as Question;
    use hickory_proto::rr::Name;
    use proptest::prelude::*;

    use super::*;
    use crate::names::FIRST_NAME;

    fn rules(hosts: &[&str]) -> Rules {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        Rules::of(&NetworkPolicy::Allow { hosts }).unwrap().unwrap()
    }

    fn ask(name: &str, kind: RecordType) -> Vec<u8> {
        let mut message = Message::new(7, MessageType::Query, OpCode::Query);
        message.add_query(Question::query(Name::from_str(name).unwrap(), kind));
        message.to_vec().unwrap()
    }

    /// Promise (Network): The resolver answers for allowed names only, with addresses that lead to the gateway.
    #[test]
    fn only_allowed_names_are_answered() {
        let (rules, denials) = (rules(&["a.example:443", "*.b.example"]), Denials::default());
        let names = Mutex::new(Names::new(FIRST_NAME));
        for (name, kind, code, answers) in [
            ("a.example.", RecordType::A, ResponseCode::NoError, 1),
            ("A.Example.", RecordType::A, ResponseCode::NoError, 1),
            ("x.b.example.", RecordType::A, ResponseCode::NoError, 1),
            ("a.example.", RecordType::AAAA, ResponseCode::NoError, 0),
            ("a.example.", RecordType::TXT, ResponseCode::NoError, 0),
            ("a.example.", RecordType::HTTPS, ResponseCode::NoError, 0),
            ("b.example.", RecordType::A, ResponseCode::NXDomain, 0),
            ("secret.evil.example.", RecordType::A, ResponseCode::NXDomain, 0),
            ("secret.evil.example.", RecordType::TXT, ResponseCode::NXDomain, 0),
            ("1.0.0.10.in-addr.arpa.", RecordType::PTR, ResponseCode::NXDomain, 0),
        ] {
            let bytes = answer(&ask(name, kind), &rules, &names, &denials).unwrap();
            let message = Message::from_vec(&bytes).unwrap();
            assert_eq!(message.metadata.id, 7);
            assert_eq!((message.metadata.response_code, message.answers.len()), (code, answers), "{name} {kind}");
            for record in &message.answers {
                let RData::A(A(address)) = record.data else { panic!("{record:?}") };
                assert!(names.lock().name(address).is_some() && address != Ipv4Addr::LOCALHOST, "{address}");
            }
        }
        let denials: Vec<String> = denials.list().iter().map(ToString::to_string).collect();
        assert_eq!(denials.len(), 2, "{denials:?}");
        assert!(denials[1].ends_with("; --net secret.evil.example:PORT would allow it (2 times)"), "{denials:?}");
    }

    proptest! {
        #[test]
        fn bytes_of_a_guest_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let (rules, denials, names) = (rules(&["*.b"]), Denials::default(), Mutex::new(Names::new(FIRST_NAME)));
            let _ = answer(&bytes, &rules, &names, &denials);
            // A valid header in front.
            let mut query = ask("a.b.", RecordType::A);
            query.truncate(12);
            query.extend(bytes);
            let _ = answer(&query, &rules, &names, &denials);
        }
    }
}
