//! The address of a database: one notation for all that the runner speaks to.

use std::fmt;

/// What speaks at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseKind {
    Postgres,
    /// MySQL and MariaDB.
    MySql,
    Sqlite,
}

/// How a connection is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsMode {
    Disable,
    /// If the server can.
    #[default]
    Prefer,
    /// Any server.
    Require,
    /// The server's certificate comes from a known authority.
    VerifyCa,
    /// It is also that of the host.
    VerifyFull,
}

/// How long a connection of PostgreSQL stays the same one behind a pooler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PoolMode {
    /// For good, as without a pooler.
    #[default]
    Session,
    /// For one transaction.
    Transaction,
}

/// A database, named by its URL. It holds no password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseUrl {
    pub kind: DatabaseKind,
    /// Empty for a file.
    pub host: String,
    /// 0 for a file.
    pub port: u16,
    pub user: Option<String>,
    /// The name of the database, or the path of the file.
    pub database: String,
    pub tls: TlsMode,
    /// Files: certificates of authorities, the client's certificate and its key.
    pub root_certificate: Option<String>,
    pub client_certificate: Option<String>,
    pub client_key: Option<String>,
    /// What the server shows as the name of the client.
    pub application: Option<String>,
    pub pool_mode: PoolMode,
}

/// Why a text is not the address of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("a database is named by postgres://user@host/name, mysql://user@host/name or sqlite:/path")]
    Scheme,
    #[error("the address of a database holds no password; use `password` with a secret")]
    Password,
    #[error("behind the host comes \"/\" and the name of the database")]
    Database,
    #[error("sslmode is disable, prefer, require, verify-ca or verify-full")]
    TlsMode,
    #[error("pool_mode is session or transaction")]
    PoolMode,
    #[error(
        "the address of a database may have the parameters sslmode, sslrootcert, sslcert, sslkey, application_name and pool_mode"
    )]
    Parameter,
    #[error("sqlite: is followed by the whole path of a file, without parameters")]
    File,
    #[error("the port of a database is a number up to 65535")]
    Port,
    #[error("the address of a database names one host")]
    Host,
    #[error("the address of a database holds a % that is not followed by two hex digits")]
    Percent,
    #[error("the address of a database holds control characters")]
    Control,
}

/// What breakers call it: host and port, or the path.
impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            DatabaseKind::Sqlite => f.write_str(&self.database),
            DatabaseKind::Postgres | DatabaseKind::MySql => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl DatabaseUrl {
    /// Reads `postgres://user@host:port/database?sslmode=…`, the same with `mysql`, or `sqlite:/path`.
    ///
    /// # Errors
    /// [`AddressError`], which repeats nothing of the text: it may hold a password where none belongs.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = text.split_once(':').ok_or(AddressError::Scheme)?;
        let (kind, port) = match scheme {
            "postgres" | "postgresql" => (DatabaseKind::Postgres, 5432),
            "mysql" | "mariadb" => (DatabaseKind::MySql, 3306),
            "sqlite" => return file(rest),
            _ => return Err(AddressError::Scheme),
        };
        let rest = rest.strip_prefix("//").ok_or(AddressError::Scheme)?;
        let (rest, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        if user.is_some_and(|user| user.contains(':')) {
            return Err(AddressError::Password);
        }
        let (host, port) = host_and_port(host, port)?;
        if database.is_empty() || database.contains('/') {
            return Err(AddressError::Database);
        }
        let mut url = Self {
            kind,
            host,
            port,
            user: user.filter(|user| !user.is_empty()).map(decoded).transpose()?,
            database: decoded(database)?,
            tls: TlsMode::default(),
            root_certificate: None,
            client_certificate: None,
            client_key: None,
            application: None,
            pool_mode: PoolMode::default(),
        };
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            url.set(name, decoded(value)?)?;
        }
        Ok(url)
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), AddressError> {
        match name {
            "sslmode" => {
                self.tls = match &*value {
                    "disable" => TlsMode::Disable,
                    "prefer" => TlsMode::Prefer,
                    "require" => TlsMode::Require,
                    "verify-ca" => TlsMode::VerifyCa,
                    "verify-full" => TlsMode::VerifyFull,
                    _ => return Err(AddressError::TlsMode),
                }
            }
            "sslrootcert" => self.root_certificate = Some(value),
            "sslcert" => self.client_certificate = Some(value),
            "sslkey" => self.client_key = Some(value),
            "pool_mode" if self.kind == DatabaseKind::Postgres => {
                self.pool_mode = match &*value {
                    "session" => PoolMode::Session,
                    "transaction" => PoolMode::Transaction,
                    _ => return Err(AddressError::PoolMode),
                }
            }
            "application_name" => self.application = Some(value),
            _ => return Err(AddressError::Parameter),
        }
        Ok(())
    }
}

fn file(path: &str) -> Result<DatabaseUrl, AddressError> {
    // `sqlite:///a` is the same file as `sqlite:/a`.
    let path = path.strip_prefix("//").unwrap_or(path);
    if !path.starts_with('/') || path.len() < 2 || path.contains('?') {
        return Err(AddressError::File);
    }
    Ok(DatabaseUrl {
        kind: DatabaseKind::Sqlite,
        host: String::new(),
        port: 0,
        user: None,
        database: decoded(path)?,
        tls: TlsMode::Disable,
        root_certificate: None,
        client_certificate: None,
        client_key: None,
        application: None,
        pool_mode: PoolMode::default(),
    })
}

fn host_and_port(text: &str, default: u16) -> Result<(String, u16), AddressError> {
    let (host, port) = match text.rfind(':') {
        Some(at) if !text.ends_with(']') => {
            let port = text[at + 1..].parse().map_err(|_| AddressError::Port)?;
            (&text[..at], port)
        }
        _ => (text, default),
    };
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    let legal = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c) || (bare != host && c == ':');
    if bare.is_empty() || !bare.chars().all(legal) {
        return Err(AddressError::Host);
    }
    Ok((bare.to_owned(), port))
}

/// Resolves `%XX`.
fn decoded(text: &str) -> Result<String, AddressError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [
            rest.next().ok_or(AddressError::Percent)?,
            rest.next().ok_or(AddressError::Percent)?,
        ];
        let digits = std::str::from_utf8(&digits).map_err(|_| AddressError::Percent)?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| AddressError::Percent)?);
    }
    let text = String::from_utf8(bytes).map_err(|_| AddressError::Percent)?;
    if text.contains(char::is_control) {
        return Err(AddressError::Control);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_into_their_parts() {
        let url =
            DatabaseUrl::parse("postgres://led%40ger@db.internal/books?sslmode=verify-full&sslrootcert=/ca")
                .expect("legal");
        assert_eq!(url.user.as_deref(), Some("led@ger"));
        assert_eq!(
            (url.to_string().as_str(), &*url.database),
            ("db.internal:5432", "books")
        );
        assert_eq!(
            (url.tls, url.root_certificate.as_deref()),
            (TlsMode::VerifyFull, Some("/ca"))
        );
        let url = DatabaseUrl::parse("mariadb://[::1]:3307/books").expect("legal");
        assert_eq!(
            (url.kind, url.host.as_str(), url.port),
            (DatabaseKind::MySql, "::1", 3307)
        );
        for text in ["sqlite:/var/books.db", "sqlite:///var/books.db"] {
            assert_eq!(
                DatabaseUrl::parse(text).expect("legal").to_string(),
                "/var/books.db"
            );
        }
    }

    #[test]
    fn an_invalid_database_address_is_refused_without_repeating_it() {
        for text in [
            "",
            "books",
            "http://h/books",
            "postgres:h/books",
            "postgres://u:s3cret@h/books",
            "postgres://h",
            "postgres://h/",
            "postgres://h/a/b",
            "postgres:///books",
            "postgres://h,i/books",
            "postgres://h:99999/books",
            "postgres://h/books?host=elsewhere",
            "postgres://h/books?password=s3cret",
            "postgres://h/books?sslmode=maybe",
            "postgres://h/b%zz",
            "postgres://h/b%00",
            "sqlite::memory:",
            "sqlite:books.db",
            "sqlite:/books.db?mode=rwc",
        ] {
            let said = DatabaseUrl::parse(text).expect_err(text).to_string();
            assert!(!said.contains("s3cret"), "{text}: {said}");
        }
    }
}
