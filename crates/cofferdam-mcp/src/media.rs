//! Media types of files, guessed from their names and first bytes, for clients that display them. They only affect how
//! contents are sent.

/// Image types that clients display, by the first bytes of the file.
const IMAGES: &[(&[u8], &str)] = &[
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
];

/// Text types by file extension.
const TEXTS: &[(&str, &str)] = &[
    ("css", "text/css"),
    ("csv", "text/csv"),
    ("htm", "text/html"),
    ("html", "text/html"),
    ("js", "text/javascript"),
    ("json", "application/json"),
    ("md", "text/markdown"),
    ("mjs", "text/javascript"),
    ("py", "text/x-python"),
    ("svg", "image/svg+xml"),
    ("toml", "application/toml"),
    ("xml", "application/xml"),
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
];

/// Returns the media type of an image that clients display.
pub fn image(data: &[u8]) -> Option<&'static str> {
    let webp = data.starts_with(b"RIFF") && data.get(8..12) == Some(b"WEBP");
    let known = IMAGES.iter().find(|(magic, _)| data.starts_with(magic)).map(|(_, media_type)| *media_type);
    known.or(webp.then_some("image/webp"))
}

/// Returns the contents as text if they are UTF-8 without NUL.
pub fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok().filter(|text| !text.contains('\0'))
}

/// Returns the media type of a file.
pub fn media_type(name: &str, data: &[u8]) -> &'static str {
    if let Some(image) = image(data) {
        return image;
    }
    if text(data).is_none() {
        return "application/octet-stream";
    }
    by_name(name)
}

/// Returns the media type of a text file with this name.
pub fn by_name(name: &str) -> &'static str {
    let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    let known = extension.and_then(|extension| TEXTS.iter().find(|(known, _)| *known == extension));
    known.map_or("text/plain", |(_, media_type)| media_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_come_before_names() {
        assert_eq!(media_type("a.csv", b"1,2\n"), "text/csv");
        assert_eq!(media_type("a.csv", b"\xff\x00"), "application/octet-stream");
        assert_eq!(media_type("a.txt", b"\x89PNG\r\n\x1a\n\0\0"), "image/png");
        assert_eq!(media_type("a", b"RIFF\0\0\0\0WEBPVP8 "), "image/webp");
        assert_eq!(media_type("README", b"hello"), "text/plain");
        assert_eq!(media_type("a\0", b"a\0b"), "application/octet-stream");
    }
}
