//! Values that several tables of `gateway.toml` have: addresses, texts, counts.

use std::net::SocketAddr;

use weir_common::config::document::Spanned;
use weir_common::config::document::table::Table;

pub(super) fn addresses(
    table: &mut Table<'_>,
    key: &str,
    default: &str,
    doc: &str,
) -> Vec<SocketAddr> {
    let is_given = table.has(key);
    let texts = table.texts(key, doc);
    table.set_default(key, vec![default].into());
    if !is_given {
        return default.parse().into_iter().collect();
    }
    texts.iter().filter_map(|text| address(table, text)).collect()
}

pub(super) fn address(table: &Table<'_>, text: &Spanned<String>) -> Option<SocketAddr> {
    let parsed = text.value.parse().ok();
    if parsed.is_none() {
        table.fault_at(
            text.at,
            format!("`{}` is not ip:port, such as \"127.0.0.1:8080\"", text.value),
        );
    }
    parsed
}

pub(super) fn plain(text: Option<Spanned<String>>) -> Option<String> {
    text.map(|text| text.value)
}

pub(super) fn plain_all(texts: Vec<Spanned<String>>) -> Vec<String> {
    texts.into_iter().map(|text| text.value).collect()
}

pub(super) fn number(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

pub(super) fn small(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
