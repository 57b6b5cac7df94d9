//! The connections to PostgreSQL.
//!
//! A network can lose a connection silently: a firewall drops it, a machine is gone. No answer comes then, and no error
//! either. sqlx limits the wait for a free connection, but neither the wait for an answer nor the test of a connection
//! before it is given back: a statement that was abandoned on such a connection keeps its place in the pool for ever, and
//! after as many of them as there are connections the server can run no statement at all.
//!
//! This file is therefore the only one that touches the pool of sqlx, and it lets every wait end:
//!
//! - A statement that PostgreSQL has not answered within its limit fails, inside a transaction too. PostgreSQL
//!   itself gives up earlier, so the limit is met by a lost connection only.
//! - A connection is given back only if its last statement was answered, and within [`RETURN_LIMIT`]. Every other one is
//!   closed. A caller may therefore drop a statement at any await point.
//! - A transaction that is dropped is rolled back, within the same limit. If PostgreSQL does not answer, the connection is
//!   closed too.
//! - An unused connection is tested before it is used again, within [`TEST_LIMIT`]. After a statement without an answer
//!   all unused connections are closed, because the network may have lost them too, and one by one they would cost a
//!   limit each. The same happens after a change that a read-only session has refused.
//! - A caller that waits for a place in a full pool gets [`StoreError::Exhausted`] after the limit of the pool, and not the
//!   error of an outage.
//! - PostgreSQL ends the sessions of clients that it cannot reach, and stops their statements, which frees
//!   the locks of such a session.

use std::{
    fmt, io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{
    FutureExt, StreamExt, TryStreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use sqlx::{
    Connection, Describe, Either, Execute, Executor, PgConnection, PgPool, Postgres, SqlStr,
    pool::PoolConnection,
    postgres::{PgArguments, PgConnectOptions, PgPoolOptions, PgQueryResult, PgRow, PgStatement, PgTypeInfo},
};

use tracing::{Instrument, Span};

use super::{
    error::{PoolExhausted, Result, StoreError, is_read_only},
    request_token,
    statement_name::statement_name,
    statement_span::{note_failure, statement_span},
};
use crate::{
    config::database::{DatabaseConfig, REPORT_CONNECTIONS},
    metrics::Metrics,
};

/// The prepared statements that a connection keeps: more than the server has, so that none is planned twice.
const STATEMENT_CACHE: usize = 500;
/// The longest time for which a connection that is given back keeps its place in the pool.
const RETURN_LIMIT: Duration = Duration::from_secs(5);
/// The longest wait for the answer of an unused connection.
const TEST_LIMIT: Duration = Duration::from_secs(1);
/// The longest time for which a start waits for PostgreSQL.
const START_LIMIT: Duration = Duration::from_secs(4);
/// The pause between two tries to connect at the start.
const START_PAUSE: Duration = Duration::from_millis(200);
/// The time for which a connection counts as working after its last answer.
const TRUSTED_IDLE_TIME: Duration = Duration::from_secs(1);

/// The use of a pool, which decides how many connections it has and how long they may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolUse {
    /// Most services, and the command line: as many connections as are configured.
    Background,
    /// Requests of users: as many connections as are configured. A request is short or is stopped, so that a few users
    /// with slow searches neither keep the others waiting for long nor use up PostgreSQL.
    Web,
    /// The consumers of reports and heartbeats. Another server counts a run as lost if they are silent for the heartbeat
    /// timeout, so a lost connection must delay them for much less.
    Reports,
    /// A service that has one connection for itself, for its whole life, and that nothing may delay for long.
    Own,
}

impl PoolUse {
    const fn limits(self) -> StatementLimits {
        match self {
            // A statement that takes longer is a bug.
            Self::Background => {
                StatementLimits { server: "15s", client: Duration::from_secs(17), acquire: Duration::from_secs(10) }
            }
            // The wait is shorter than the limit for reading a session, which would otherwise report an outage.
            Self::Web => {
                StatementLimits { server: "3s", client: Duration::from_secs(4), acquire: Duration::from_secs(2) }
            }
            Self::Reports => {
                StatementLimits { server: "5s", client: Duration::from_secs(6), acquire: Duration::from_secs(3) }
            }
            Self::Own => {
                StatementLimits { server: "3s", client: Duration::from_secs(4), acquire: Duration::from_secs(10) }
            }
        }
    }

    /// Returns the name in metrics.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Background => "background",
            Self::Web => "web",
            Self::Reports => "reports",
            Self::Own => "own",
        }
    }

    /// Returns the options of the pool.
    fn options(self, config: &DatabaseConfig) -> PgPoolOptions {
        let options = PgPoolOptions::new().acquire_timeout(self.limits().acquire);
        match self {
            Self::Background | Self::Web => options.max_connections(config.max_connections),
            Self::Reports => options.max_connections(REPORT_CONNECTIONS),
            // A new connection would cost the dispatcher its head start, and the lease a part of its validity.
            Self::Own => options.max_connections(1).idle_timeout(None).max_lifetime(None),
        }
    }
}

/// The longest times for a statement. PostgreSQL gives up first, so that its answer arrives.
#[derive(Clone, Copy, Debug)]
struct StatementLimits {
    /// The time after which PostgreSQL cancels it.
    server: &'static str,
    /// The longest wait for its answer.
    client: Duration,
    /// The longest wait for a free connection.
    acquire: Duration,
}

/// The instant at which a connection of the pool was lost. The others may have been lost with it. Clones share it.
#[derive(Clone, Debug, Default)]
struct LastLoss(Arc<Mutex<Option<Instant>>>);

impl LastLoss {
    fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Returns true if a connection that has been idle for this long was last used before the loss.
    fn may_concern(&self, idle_for: Duration) -> bool {
        let lost = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lost.is_some_and(|lost| lost.elapsed() < idle_for)
    }
}

/// The number of connections that callers hold. Clones share it.
#[derive(Clone, Debug, Default)]
struct LentConnections(Arc<AtomicU32>);

impl LentConnections {
    fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts one more, until the result is dropped.
    fn lend(&self) -> LentConnection {
        self.0.fetch_add(1, Ordering::Relaxed);
        LentConnection(self.0.clone())
    }
}

/// One of the [`LentConnections`].
struct LentConnection(Arc<AtomicU32>);

impl Drop for LentConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The pool. Clones share the connections. It runs single statements itself, as an [`Executor`].
#[derive(Clone, Debug)]
pub struct StorePool {
    pool: PgPool,
    limits: StatementLimits,
    last_loss: LastLoss,
    lent: LentConnections,
    pool_use: PoolUse,
    pub(super) metrics: Metrics,
}

/// The connections of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolState {
    /// The use of the pool.
    pub pool_use: PoolUse,
    /// Connections that callers hold.
    pub in_use: u32,
    /// Connections that nothing uses now.
    pub idle: u32,
    /// The most connections.
    pub limit: u32,
}

impl StorePool {
    /// Connects with the session parameters that the statements need. The connections of [`PoolUse::Reports`] and
    /// [`PoolUse::Web`] are opened when they are needed.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] with the cause if PostgreSQL cannot be reached within four seconds.
    pub async fn connect(config: &DatabaseConfig, pool_use: PoolUse) -> Result<Self> {
        let (limits, last_loss) = (pool_use.limits(), LastLoss::default());
        let options: PgConnectOptions = config.url.parse().map_err(StoreError::Driver)?;
        let options = options.application_name("milvaion").statement_cache_capacity(STATEMENT_CACHE).options([
            ("statement_timeout", limits.server),
            // An idle open transaction would block other writers.
            ("idle_in_transaction_session_timeout", "5s"),
            // The planner overestimates short statements over many partitions; JIT compilation would cost more than it
            // saves.
            ("jit", "off"),
            // The tables of open work swing between no row and a million, and a plan may date from a time when they were
            // empty. Reading such a table as a whole is never right.
            ("enable_seqscan", "off"),
            ("timezone", "UTC"),
            // The session of a client that is gone ends within 25 s while it waits, and within 5 s during a statement.
            ("tcp_keepalives_idle", "10"),
            ("tcp_keepalives_interval", "5"),
            ("tcp_keepalives_count", "3"),
            ("tcp_user_timeout", "15s"),
            ("client_connection_check_interval", "5s"),
        ]);
        if pool_use == PoolUse::Background {
            wait_for_postgresql(&options).await?;
        }
        let losses = last_loss.clone();
        let pool_options = pool_use
            .options(config)
            .after_connect(|connection, _| Box::pin(refuse_read_only(connection)))
            // The test of sqlx waits for as long as the caller does.
            .test_before_acquire(false)
            .before_acquire(move |connection, metadata| {
                let is_suspect = losses.may_concern(metadata.idle_for);
                Box::pin(async move {
                    if is_suspect || metadata.idle_for < TRUSTED_IDLE_TIME {
                        return Ok(!is_suspect);
                    }
                    limited(TEST_LIMIT, connection.ping()).await.map(|()| true)
                })
            });
        let pool = match pool_use {
            PoolUse::Reports | PoolUse::Web => pool_options.connect_lazy_with(options),
            PoolUse::Background | PoolUse::Own => pool_options.connect_with(options).await?,
        };
        Ok(Self { pool, limits, last_loss, lent: LentConnections::default(), pool_use, metrics: Metrics::default() })
    }

    /// Returns the number of connections.
    pub(super) fn state(&self) -> PoolState {
        let in_use = self.lent.count();
        let limit = self.pool.options().get_max_connections();
        PoolState { pool_use: self.pool_use, in_use, idle: self.pool.size().saturating_sub(in_use), limit }
    }

    /// Returns the address of the database and the session parameters.
    pub(super) fn connect_options(&self) -> PgConnectOptions {
        self.pool.connect_options().as_ref().clone()
    }

    /// Waits for a free connection.
    ///
    /// # Errors
    ///
    /// Fails if PostgreSQL cannot be reached, or if no connection is free in time.
    pub async fn acquire(&self) -> sqlx::Result<StoreConnection> {
        let since = Instant::now();
        let acquired = self.pool.acquire().await;
        let is_exhausted = matches!(acquired, Err(sqlx::Error::PoolTimedOut))
            && self.lent.count() >= self.pool.options().get_max_connections();
        self.metrics.waited_for_connection(self.pool_use.slug(), since.elapsed(), is_exhausted);
        if is_exhausted {
            return Err(sqlx::Error::AnyDriverError(Box::new(PoolExhausted)));
        }
        let connection = acquired?;
        Ok(StoreConnection {
            connection,
            is_idle: true,
            limit: self.limits.client,
            last_loss: self.last_loss.clone(),
            metrics: self.metrics.clone(),
            _lent: self.lent.lend(),
        })
    }

    /// Begins a transaction.
    ///
    /// # Errors
    ///
    /// Fails if PostgreSQL cannot be reached, or if no connection is free in time.
    pub async fn begin(&self) -> sqlx::Result<StoreTransaction> {
        let mut connection = self.acquire().await?;
        connection.run_named("begin", async |connection| connection.execute("BEGIN").await).await?;
        connection.is_idle = false;
        let mut transaction = StoreTransaction { connection: Some(connection) };
        if let Some(token) = request_token::current() {
            let set = sqlx::query("SELECT set_config('milvaion.token', $1, true)").bind(token);
            set.execute(&mut transaction).await?;
        }
        Ok(transaction)
    }

    /// Runs a statement that is a transaction by itself. The audit rows and occurrences of a request with a token name it,
    /// so its statement needs a transaction in which the token is set.
    async fn run_alone<T>(
        &self,
        name: &str,
        statement: impl AsyncFnOnce(&mut PgConnection) -> sqlx::Result<T>,
    ) -> sqlx::Result<T> {
        if request_token::current().is_none() {
            return self.acquire().await?.run_named(name, statement).await;
        }
        let mut transaction = self.begin().await?;
        let answer = transaction.connection()?.run_named(name, statement).await?;
        transaction.commit().await?;
        Ok(answer)
    }

    /// Closes all connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

impl From<PgPool> for StorePool {
    fn from(pool: PgPool) -> Self {
        let pool_use = PoolUse::Background;
        let (last_loss, lent) = (LastLoss::default(), LentConnections::default());
        Self { pool, limits: pool_use.limits(), last_loss, lent, pool_use, metrics: Metrics::default() }
    }
}

/// Refuses a server that replicates another one, or that accepts no changes for another reason. After a failover, an address
/// may still lead to the wrong of the two, and a connection to it would fail at each change.
async fn refuse_read_only(connection: &mut PgConnection) -> sqlx::Result<()> {
    let is_read_only: bool =
        sqlx::query_scalar("SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::bool")
            .fetch_one(connection)
            .await?;
    if is_read_only {
        let text = "this PostgreSQL is read-only: it is a standby, or default_transaction_read_only is on";
        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, text).into());
    }
    Ok(())
}

/// Waits until PostgreSQL accepts a connection. The pool would wait too, but would then report that it has no connection
/// instead of the reason.
async fn wait_for_postgresql(options: &PgConnectOptions) -> Result<()> {
    let deadline = Instant::now() + START_LIMIT;
    let mut earlier: Option<StoreError> = None;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let connecting = async {
            let mut connection = PgConnection::connect_with(options).await?;
            refuse_read_only(&mut connection).await?;
            let _ = connection.close().await;
            Ok(())
        };
        let error = match limited(left, connecting).await {
            Ok(()) => return Ok(()),
            Err(error) => StoreError::Driver(error),
        };
        // A wrong password stays wrong.
        if !error.is_outage() || Instant::now() + START_PAUSE >= deadline {
            // The last attempt may have had no time for an answer.
            return Err(earlier.filter(|_| error.is_unanswered()).unwrap_or(error));
        }
        earlier = Some(error);
        tokio::time::sleep(START_PAUSE).await;
    }
}

/// Awaits an answer of PostgreSQL. After `limit` it fails as a lost connection does.
async fn limited<T>(limit: Duration, answer: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer,
        Err(_) => {
            let text = format!("PostgreSQL did not respond within {} s", limit.as_secs());
            Err(io::Error::new(io::ErrorKind::TimedOut, text).into())
        }
    }
}

/// A connection of the pool. It is given back when it is dropped, or closed if its last statement was not answered.
pub struct StoreConnection {
    connection: PoolConnection<Postgres>,
    /// True while PostgreSQL waits for a statement.
    is_idle: bool,
    /// The longest wait for the answer to a statement.
    limit: Duration,
    /// The losses of the pool.
    last_loss: LastLoss,
    /// The metrics of the server.
    metrics: Metrics,
    /// Counts the connection while it is held.
    _lent: LentConnection,
}

impl StoreConnection {
    /// Runs a statement.
    ///
    /// # Errors
    ///
    /// Fails if PostgreSQL refuses the statement, or if it does not respond within its limit.
    pub async fn run<T>(
        &mut self,
        statement: impl AsyncFnOnce(&mut PgConnection) -> sqlx::Result<T>,
    ) -> sqlx::Result<T> {
        self.run_within(self.limit, statement).await
    }

    /// Runs a statement and measures it under a name.
    async fn run_named<T>(
        &mut self,
        name: &str,
        statement: impl AsyncFnOnce(&mut PgConnection) -> sqlx::Result<T>,
    ) -> sqlx::Result<T> {
        let since = Instant::now();
        let answer = self.run(statement).await;
        self.metrics.statement(name, since.elapsed(), answer.is_err());
        answer
    }

    /// Runs a statement that may take longer than others.
    ///
    /// # Errors
    ///
    /// Fails if PostgreSQL refuses the statement, or if it does not respond within `limit`.
    pub async fn run_within<T>(
        &mut self,
        limit: Duration,
        statement: impl AsyncFnOnce(&mut PgConnection) -> sqlx::Result<T>,
    ) -> sqlx::Result<T> {
        self.is_idle = false;
        let answer = limited(limit, statement(&mut self.connection)).await;
        let is_useless = answer.as_ref().is_err_and(is_read_only);
        // A refusal is an answer, after which PostgreSQL waits for the next statement.
        self.is_idle = !is_useless && matches!(answer, Ok(_) | Err(sqlx::Error::Database(_)));
        if is_useless || matches!(&answer, Err(sqlx::Error::Io(error)) if error.kind() == io::ErrorKind::TimedOut) {
            self.last_loss.note();
        }
        answer
    }
}

impl fmt::Debug for StoreConnection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("StoreConnection").field("is_idle", &self.is_idle).finish_non_exhaustive()
    }
}

impl Drop for StoreConnection {
    fn drop(&mut self) {
        match tokio::runtime::Handle::try_current() {
            // The connection answers a last test there.
            Ok(runtime) if self.is_idle => {
                runtime.spawn(tokio::time::timeout(RETURN_LIMIT, self.connection.return_to_pool()));
            }
            _ => self.connection.close_on_drop(),
        }
    }
}

/// A transaction. It is rolled back when it is dropped.
#[derive(Debug)]
pub struct StoreTransaction {
    /// `None` once the transaction has ended.
    connection: Option<StoreConnection>,
}

impl StoreTransaction {
    /// Commits the transaction.
    ///
    /// # Errors
    ///
    /// Fails if PostgreSQL refuses it, or if it does not respond within the limit of a statement; it may then be committed.
    pub async fn commit(mut self) -> sqlx::Result<()> {
        let Some(mut connection) = self.connection.take() else { return Ok(()) };
        connection.run_named("commit", async |connection| connection.execute("COMMIT").await).await.map(drop)
    }
}

impl StoreTransaction {
    /// Returns the connection, which only the end of the transaction takes.
    fn connection(&mut self) -> sqlx::Result<&mut StoreConnection> {
        self.connection.as_mut().ok_or(sqlx::Error::PoolClosed)
    }
}

impl Drop for StoreTransaction {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        // Without a runtime, the connection is closed.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        // An abandoned statement is answered first; the connection is closed if that takes too long.
        let rollback =
            async move { connection.run(async |connection| connection.execute("ROLLBACK").await).await.map(drop) };
        runtime.spawn(tokio::time::timeout(RETURN_LIMIT, rollback));
    }
}

/// A statement as its text and its arguments.
type NamedQuery = (SqlStr, Option<PgArguments>);

/// Returns the name of a statement, and the statement.
fn named<'q>(mut query: impl Execute<'q, Postgres>) -> sqlx::Result<(String, NamedQuery)> {
    let arguments = query.take_arguments().map_err(sqlx::Error::Encode)?;
    let sql = query.sql();
    Ok((statement_name(sql.as_str()), (sql, arguments)))
}

/// Returns the span of a statement.
fn span_of(query: &sqlx::Result<(String, NamedQuery)>) -> Span {
    query.as_ref().map_or_else(|_| Span::none(), |(name, (sql, _))| statement_span(name, sql.as_str()))
}

/// Awaits the answer to a statement within its span.
async fn spanned<T>(span: Span, answer: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
    let answer = answer.instrument(span.clone()).await;
    note_failure(&span, &answer);
    answer
}

/// Runs single statements. All rows are read before the first is returned.
impl<'p> Executor<'p> for &'p StorePool {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, sqlx::Result<Either<PgQueryResult, PgRow>>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let query = named(query);
        let span = span_of(&query);
        let steps = async move {
            let (name, query) = query?;
            let statement =
                async |connection: &mut PgConnection| connection.fetch_many(query).try_collect::<Vec<_>>().await;
            self.run_alone(&name, statement).await
        };
        stream::once(spanned(span, steps)).map_ok(|steps| stream::iter(steps.into_iter().map(Ok))).try_flatten().boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, sqlx::Result<Option<PgRow>>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let query = named(query);
        let span = span_of(&query);
        let answer = async move {
            let (name, query) = query?;
            self.run_alone(&name, async |connection| connection.fetch_optional(query).await).await
        };
        spanned(span, answer).boxed()
    }

    fn prepare_with<'e>(self, sql: SqlStr, parameters: &'e [PgTypeInfo]) -> BoxFuture<'e, sqlx::Result<PgStatement>>
    where
        'p: 'e,
    {
        async move { self.acquire().await?.run(async |connection| connection.prepare_with(sql, parameters).await).await }
            .boxed()
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, sqlx::Result<Describe<Postgres>>>
    where
        'p: 'e,
    {
        async move { self.acquire().await?.run(async |connection| connection.describe(sql).await).await }.boxed()
    }
}

/// Runs the statements of the transaction, each within the limit of a statement.
impl<'t> Executor<'t> for &'t mut StoreTransaction {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, sqlx::Result<Either<PgQueryResult, PgRow>>>
    where
        't: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let query = named(query);
        let span = span_of(&query);
        let steps = async move {
            let (name, query) = query?;
            let statement =
                async |connection: &mut PgConnection| connection.fetch_many(query).try_collect::<Vec<_>>().await;
            self.connection()?.run_named(&name, statement).await
        };
        stream::once(spanned(span, steps)).map_ok(|steps| stream::iter(steps.into_iter().map(Ok))).try_flatten().boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, sqlx::Result<Option<PgRow>>>
    where
        't: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let query = named(query);
        let span = span_of(&query);
        let answer = async move {
            let (name, query) = query?;
            self.connection()?.run_named(&name, async |connection| connection.fetch_optional(query).await).await
        };
        spanned(span, answer).boxed()
    }

    fn prepare_with<'e>(self, sql: SqlStr, parameters: &'e [PgTypeInfo]) -> BoxFuture<'e, sqlx::Result<PgStatement>>
    where
        't: 'e,
    {
        async move { self.connection()?.run(async |connection| connection.prepare_with(sql, parameters).await).await }
            .boxed()
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, sqlx::Result<Describe<Postgres>>>
    where
        't: 'e,
    {
        async move { self.connection()?.run(async |connection| connection.describe(sql).await).await }.boxed()
    }
}
