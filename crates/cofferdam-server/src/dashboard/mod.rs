//! The dashboard: web pages that use the REST API as any other client does, with a key of their user.
//!
//! The pages hold no data and need no key. `cargo xtask dashboard` builds them from `dashboard/` of this crate. They load
//! nothing from other hosts. The content security policy names the script and the style sheet by their hashes: others of
//! this origin may be a guest's, below the path of a port. Browsers hash what is in the page, so both are in it.

use std::sync::LazyLock;

use axum::Router;
use axum::extract::{Path, Request};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cofferdam_contract::{Error, ErrorKind};
use cofferdam_util::sha256;
use sha2::{Digest as _, Sha256};

use crate::rest::ports::ByHost;
use crate::rest::problem::Failure;

/// A file of the dashboard.
struct Asset {
    name: &'static str,
    media: &'static str,
    contents: Bytes,
    tag: HeaderValue,
}

impl Asset {
    fn new(name: &'static str, media: &'static str, contents: impl Into<Bytes>) -> Self {
        let contents = contents.into();
        let tag = format!("\"{}\"", sha256::of(&contents));
        // A tag is hexadecimal.
        let tag = HeaderValue::from_str(&tag).unwrap_or(HeaderValue::from_static("\"\""));
        Self { name, media, contents, tag }
    }
}

const SCRIPT: &str = include_str!("assets/app.js");
const STYLE: &str = include_str!("assets/app.css");
/// The page, with marks where the script and the style sheet belong.
const TEMPLATE: &str = include_str!("assets/index.html");
const SCRIPT_MARK: &str = "{{script}}";
const STYLE_MARK: &str = "{{style}}";

static PAGE: LazyLock<Asset> = LazyLock::new(|| {
    let page = TEMPLATE.replacen(STYLE_MARK, STYLE, 1).replacen(SCRIPT_MARK, SCRIPT, 1);
    Asset::new("index.html", "text/html; charset=utf-8", page)
});
static ASSETS: LazyLock<[Asset; 2]> = LazyLock::new(|| {
    [
        Asset::new("icon.svg", "image/svg+xml", &include_bytes!("assets/icon.svg")[..]),
        Asset::new("licenses.txt", "text/plain; charset=utf-8", &include_bytes!("assets/licenses.txt")[..]),
    ]
});

/// Everything is refused but the script, the style sheet, and the images and the API of this server. Figures of code are
/// `data:` images, which run no scripts.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
    let policy = format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src 'self' data:; \
         frame-ancestors 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'",
        hash(SCRIPT),
        hash(STYLE)
    );
    // Hashes are base64.
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"))
});
/// The headers of all answers, besides the policy.
const HEADERS: [(HeaderName, &str); 7] = [
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), microphone=(), geolocation=(), usb=()"),
    // A new version of the server has other files by the same names.
    (CACHE_CONTROL, "no-cache"),
];

/// Returns the routes of the pages.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/", get(page)).route("/assets/{name}", get(asset))
}

async fn page(request: Request) -> Response {
    // A host name of a sandbox that does not exist leads nowhere.
    if request.extensions().get::<ByHost>().is_some() {
        return missing();
    }
    answer(request.headers(), &PAGE)
}

async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    match ASSETS.iter().find(|asset| asset.name == name) {
        Some(asset) => answer(&headers, asset),
        None => missing(),
    }
}

fn missing() -> Response {
    Failure::from(Error::new(ErrorKind::NotFound, "route", "there is no such page")).into_response()
}

fn answer(request: &HeaderMap, asset: &Asset) -> Response {
    let is_known = request.get_all(IF_NONE_MATCH).iter().any(|known| known == asset.tag);
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => asset.contents.clone().into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(asset.media));
    headers.insert(ETAG, asset.tag.clone());
    headers.insert(CONTENT_SECURITY_POLICY, POLICY.clone());
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_only_the_hashed_code_and_loads_only_its_assets() {
        assert!(!TEMPLATE.contains("style=") && !TEMPLATE.contains(" on"), "{TEMPLATE}");
        assert!(!TEMPLATE.contains("//"), "another host: {TEMPLATE}");
        let elements =
            [format!("<style>{STYLE_MARK}</style>"), format!("<script type=\"module\">{SCRIPT_MARK}</script>")];
        for (element, tag) in elements.iter().zip(["<style", "<script"]) {
            assert_eq!((TEMPLATE.matches(element).count(), TEMPLATE.matches(tag).count()), (1, 1), "{TEMPLATE}");
        }
        let page = std::str::from_utf8(&PAGE.contents).unwrap();
        assert!(page.contains(&format!("<style>{STYLE}</style>")) && page.contains(&format!(">{SCRIPT}</script>")));
        // The parser would end the text, or change it before the hash.
        for end in ["</script", "<!--", "\r", "\0"] {
            assert!(!SCRIPT.to_ascii_lowercase().contains(end), "{end:?} is in the script");
        }
        for end in ["</style", "\r", "\0", SCRIPT_MARK] {
            assert!(!STYLE.to_ascii_lowercase().contains(end), "{end:?} is in the style sheet");
        }
        let named = TEMPLATE.split("\"/assets/").skip(1).map(|rest| rest.split('"').next().unwrap());
        for name in named {
            assert!(ASSETS.iter().any(|asset| asset.name == name), "{name}");
        }
    }

    #[test]
    fn the_files_are_small() {
        let sum: usize = ASSETS.iter().chain([&*PAGE]).map(|asset| asset.contents.len()).sum();
        assert!(sum < 700 << 10, "{sum} bytes");
    }
}
