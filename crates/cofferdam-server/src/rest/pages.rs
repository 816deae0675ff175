//! Pages of lists.

use super::problem::Failure;

/// The most objects of one page.
const MAX_PAGE: usize = 1000;
/// The objects of a page whose request does not say.
const DEFAULT_PAGE: usize = 100;

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

    /// Returns the objects of the page, and the value of `after` for the next one, if there is one.
    pub(super) fn cut<T>(self, mut found: Vec<T>, id: impl Fn(&T) -> &str) -> (Vec<T>, Option<String>) {
        let more = found.len() > self.0;
        found.truncate(self.0);
        let next = found.last().filter(|_| more).map(|last| id(last).to_owned());
        (found, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_names_the_next_one_only_if_there_is_one() {
        let size = PageSize::of(Some(2)).unwrap();
        let cut = |found: &[&'static str]| size.cut(found.to_vec(), |id| id);
        assert_eq!(cut(&["a", "b", "c"]), (vec!["a", "b"], Some("b".to_owned())));
        assert_eq!(cut(&["a", "b"]), (vec!["a", "b"], None));
        assert_eq!(cut(&[]), (vec![], None));
        assert_eq!(PageSize::of(None).unwrap().wanted(), DEFAULT_PAGE + 1);
        for limit in [0, MAX_PAGE + 1] {
            assert!(PageSize::of(Some(limit)).is_err());
        }
    }
}
