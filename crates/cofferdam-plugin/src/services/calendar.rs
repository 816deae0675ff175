//! The calendar of a tenant: entries with recurrence rules, queries, and import and export as iCalendar.
//!
//! Plugins write the rules, so a query spends a limited time on them, and rules that repeat more often than hourly are
//! refused.

mod entry;
mod ics;
mod recurrence;

use std::collections::BinaryHeap;
use std::time::Instant;

use redb::WriteTransaction;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{CallError, ErrorKind};

use super::store::{Change, Shared, charge, random_id};
use super::{Caller, Inner, page, parse, rfc3339, time};
use entry::{CreateParams, Entry};

pub(super) const ENTRIES: Shared = Shared::new("calendar");

/// The maximum length of an iCalendar text, in both directions.
const MAX_ICS: usize = 1 << 20;
/// The maximum number of entries of an import.
const MAX_IMPORT: usize = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ById {
    id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Query {
    from: String,
    to: String,
    limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Import {
    ics: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Export {
    ids: Option<Vec<String>>,
}

impl Inner {
    pub(super) fn calendar_create(&self, caller: &Caller, params: Value) -> Result<Value, CallError> {
        let entry = Entry::new(random_id()?, parse::<CreateParams>(params)?)?;
        self.store.write(|transaction| self.replace_entry(transaction, caller, &entry.id, Some(&entry)))?;
        Ok(json!({"id": entry.id}))
    }

    pub(super) fn calendar_read(&self, caller: &Caller, params: Value) -> Result<Value, CallError> {
        let ById { id } = parse(params)?;
        Ok(self.find_entry(caller, &id)?.shown())
    }

    pub(super) fn calendar_delete(&self, caller: &Caller, params: Value) -> Result<Value, CallError> {
        let ById { id } = parse(params)?;
        let deleted = self.store.write(|transaction| self.replace_entry(transaction, caller, &id, None))?;
        Ok(json!({"deleted": deleted}))
    }

    /// Returns the occurrences that overlap a range, ordered by start.
    pub(super) fn calendar_query(&self, caller: &Caller, params: Value) -> Result<Value, CallError> {
        let Query { from, to, limit } = parse(params)?;
        let range = (time("from", &from)?.to_utc(), time("to", &to)?.to_utc());
        let limit = page(limit)?;
        if range.0 >= range.1 {
            return Err(CallError::invalid("from is before to"));
        }
        let deadline = Instant::now() + self.limits.recurrence;
        // The earliest occurrences. The top of the heap is the latest of them.
        let mut earliest = BinaryHeap::new();
        self.for_each_entry(caller, |entry| {
            for (start, end) in entry.occurrences(range)? {
                check_time(deadline)?;
                let is_later = |top: &(_, _, String, String)| (start, end) >= (top.0, top.1);
                if start >= range.1 || earliest.len() >= limit && earliest.peek().is_some_and(is_later) {
                    break;
                }
                if entry::overlaps((start, end), range) {
                    earliest.push((start, end, entry.id.clone(), entry.summary.clone()));
                    if earliest.len() > limit {
                        earliest.pop();
                    }
                }
            }
            check_time(deadline)
        })?;
        let occurrences = earliest.into_sorted_vec().into_iter().map(|(start, end, id, summary)| {
            json!({"id": id, "summary": summary, "start": rfc3339(&start), "end": rfc3339(&end)})
        });
        Ok(json!({"occurrences": occurrences.collect::<Vec<_>>()}))
    }

    pub(super) fn calendar_import(&self, caller: &Caller, params: Value) -> Result<Value, CallError> {
        let Import { ics } = parse(params)?;
        if ics.len() > MAX_ICS {
            return Err(CallError::new(ErrorKind::Limit, format!("ics has at most {MAX_ICS} bytes")));
        }
        let entries = ics::parse(&ics, MAX_IMPORT, Instant::now() + self.limits.recurrence)?;
        self.store.write(|transaction| {
            for entry in &entries {
                self.replace_entry(transaction, caller, &entry.id, Some(entry))?;
            }
            Ok(())
        })?;
        Ok(json!({"ids": entries.iter().map(|entry| &entry.id).collect::<Vec<_>>()}))
    }

    pub(super) fn calendar_export(&self, caller: &Caller, params: Value) -> Result<Value, CallError> {
        let Export { ids } = parse(params)?;
        let mut entries = Vec::new();
        match ids {
            Some(ids) if ids.len() > MAX_IMPORT => {
                return Err(CallError::invalid(format!("ids has at most {MAX_IMPORT} items")));
            }
            Some(ids) => {
                for id in ids {
                    entries.push(self.find_entry(caller, &id)?);
                }
            }
            None => self.for_each_entry(caller, |entry| {
                entries.push(entry);
                Ok(())
            })?,
        }
        let ics = ics::print(entries.iter(), self.now());
        if ics.len() > MAX_ICS {
            let message = format!("the calendar has more than {MAX_ICS} bytes as iCalendar; name the ids to export");
            return Err(CallError::new(ErrorKind::Limit, message));
        }
        Ok(json!({"ics": ics}))
    }

    fn find_entry(&self, caller: &Caller, id: &str) -> Result<Entry, CallError> {
        self.store.read(|transaction| {
            let entries = transaction.open_table(ENTRIES)?;
            let found = entries.get((caller.tenant_key().as_str(), id))?;
            let found = found.ok_or_else(|| CallError::not_found("the calendar has no entry with this id"))?;
            Ok(serde_json::from_slice(found.value())?)
        })
    }

    fn for_each_entry(
        &self,
        caller: &Caller,
        mut visit: impl FnMut(Entry) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        let tenant = caller.tenant_key();
        self.store.read(|transaction| {
            let entries = transaction.open_table(ENTRIES)?;
            for item in entries.range((tenant.as_str(), "")..)? {
                let (key, entry) = item?;
                if key.value().0 != tenant {
                    break;
                }
                visit(serde_json::from_slice(entry.value())?)?;
            }
            Ok(())
        })
    }

    /// Sets or removes an entry with its usage. Returns true if it existed.
    fn replace_entry(
        &self,
        transaction: &WriteTransaction,
        caller: &Caller,
        id: &str,
        entry: Option<&Entry>,
    ) -> Result<bool, CallError> {
        let tenant = caller.tenant_key();
        let mut entries = transaction.open_table(ENTRIES)?;
        let text = entry.map(serde_json::to_vec).transpose()?;
        let before = match &text {
            Some(text) => entries.insert((tenant.as_str(), id), text.as_slice())?,
            None => entries.remove((tenant.as_str(), id))?,
        };
        let size = |text: &[u8]| (id.len() + text.len()) as u64;
        let before = before.map(|old| size(old.value()));
        let change = Change { before, after: text.as_deref().map(size) };
        charge(transaction, ("calendar", "", &tenant), self.limits.calendar, change)?;
        Ok(before.is_some())
    }
}

/// Fails after the deadline for recurrence rules.
fn check_time(deadline: Instant) -> Result<(), CallError> {
    if Instant::now() < deadline {
        return Ok(());
    }
    let message = "the recurrence rules took too long; query a time nearer to their start, or use fewer";
    Err(CallError::new(ErrorKind::Limit, message))
}

#[cfg(test)]
#[path = "calendar/tests.rs"]
mod tests;
