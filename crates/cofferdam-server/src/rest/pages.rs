//! Pages of lists.

use serde::Deserialize;
use utoipa::IntoParams;

use super::problem::Failure;

/// The most objects of one page.
const MAX_PAGE: usize = 1000;
/// The objects of a page whose request does not say.
const DEFAULT_PAGE: usize = 100;

/// Parameters of a list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    /// The value of `next` of the page before.
    #[param(max_length = 128)]
    pub(super) after: Option<String>,
    /// The most objects of the page. Default: 100.
    #[param(minimum = 1, maximum = 1000)]
    pub(super) limit: Option<usize>,
}

impl PageQuery {
    /// Returns the page of a complete list, in the order of ids, and the value of `after` for the next one.
    pub(super) fn page<T>(
        &self,
        mut all: Vec<T>,
        id: impl Fn(&T) -> &str,
    ) -> Result<(Vec<T>, Option<String>), Failure> {
        let size = PageSize::of(self.limit)?;
        all.retain(|one| self.after.as_deref().is_none_or(|after| id(one) > after));
        all.sort_by(|a, b| id(a).cmp(id(b)));
        Ok(size.cut(all, id))
    }
}

/// The size of a page.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageSize(usize);

impl PageSize {
    /// Checks the parameter `limit`.
    pub(super) fn of(limit: Option<usize>) -> Result<Self, Failure> {
        let limit = limit.unwrap_or(DEFAULT_PAGE);
        if !(1..=MAX_PAGE).contains(&limit) {
            return Err(Failure::bad_request(format!("limit must be between 1 and {MAX_PAGE}")));
        }
        Ok(Self(limit))
    }

    /// Returns the number of objects.
    pub(super) fn get(self) -> usize {
        self.0
    }

    /// Returns the number of objects to look up: one more than the page has shows whether there is a next page.
    pub(super) fn wanted(self) -> usize {
        self.0 + 1
    }

    /// Returns the objects of the page, and the value of `after` for the next one, if there is one. Objects with the same
    /// id, such as files whose names are no text, stay on one page.
    pub(super) fn cut<T>(self, mut found: Vec<T>, id: impl Fn(&T) -> &str) -> (Vec<T>, Option<String>) {
        let mut end = found.len().min(self.0);
        while (1..found.len()).contains(&end) && id(&found[end]) == id(&found[end - 1]) {
            end += 1;
        }
        let more = found.len() > end;
        found.truncate(end);
        let next = found.last().filter(|_| more).map(|last| id(last).to_owned());
        (found, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_complete_list_have_each_object_once() {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let query = PageQuery { after, limit: Some(2) };
            let (page, next) = query.page(vec!["e", "b", "d", "a", "c"], |id| id).unwrap();
            seen.extend(page);
            after = next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, ["a", "b", "c", "d", "e"]);
    }

    #[test]
    fn a_page_names_the_next_one_only_if_there_is_one() {
        let size = PageSize::of(Some(2)).unwrap();
        let cut = |found: &[&'static str]| size.cut(found.to_vec(), |id| id);
        assert_eq!(cut(&["a", "b", "c"]), (vec!["a", "b"], Some("b".to_owned())));
        assert_eq!(cut(&["a", "b"]), (vec!["a", "b"], None));
        assert_eq!(cut(&[]), (vec![], None));
        assert_eq!(cut(&["a", "b", "b", "c"]), (vec!["a", "b", "b"], Some("b".to_owned())));
        assert_eq!(cut(&["a", "b", "b"]), (vec!["a", "b", "b"], None));
        assert_eq!(PageSize::of(None).unwrap().wanted(), DEFAULT_PAGE + 1);
        for limit in [0, MAX_PAGE + 1] {
            assert!(PageSize::of(Some(limit)).is_err());
        }
    }
}
