//! JavaScript expressions in an engine of their own (contract 00 §10): no host functions, bounded in
//! time, memory and result.

use std::{cell::Cell, rc::Rc, time::Duration};

use rquickjs::{
    CatchResultExt, CaughtError, Context, Ctx, Function, Runtime, Value as JsValue,
    context::intrinsic::{Date, Eval, Json, MapSet, Promise, RegExp, RegExpCompiler},
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use tokio::{sync::Semaphore, time::timeout};

/// CPU time of one expression.
const MOST_TIME: Duration = Duration::from_millis(50);
const MOST_MEMORY: usize = 16 << 20;
const MOST_STACK: usize = 256 << 10;
const MOST_RESULT: usize = 1 << 20;
/// Expressions that run at once.
const AT_ONCE: usize = 2;
/// Nobody waits longer for one.
const MOST_WAIT: Duration = Duration::from_secs(2);
/// What is there beside the language: nothing that works long in one step without being counted.
type Intrinsics = (Date, Eval, RegExpCompiler, RegExp, Json, MapSet, Promise);
const PRELUDE: &str = include_str!("script.js");

static PLACES: Semaphore = Semaphore::const_new(AT_ONCE);

/// Whether a text is an expression; the reason when not.
pub(crate) fn parse(expression: &str) -> Result<(), String> {
    // A function's body is parsed when the function is made, and not run.
    run(|context| compile(&context, "value", expression).map(|_| ()))
}

/// The value of an expression over one variable, beside the threads that serve others.
pub(crate) async fn evaluate(expression: &str, variable: &'static str, value: &Value) -> Result<Value, String> {
    let (expression, input) = (expression.to_owned(), value.to_string());
    let place = PLACES.acquire().await.map_err(|error| error.to_string())?;
    let evaluated = tokio::task::spawn_blocking(move || {
        let _place = place;
        run(|context| apply(&context, variable, &expression, input))
    });
    match timeout(MOST_WAIT, evaluated).await {
        Ok(evaluated) => evaluated.map_err(|error| error.to_string())?,
        Err(_) => Err(too_long()),
    }
}

fn too_long() -> String {
    format!("the expression takes more than {} ms", MOST_TIME.as_millis())
}

fn run<T>(work: impl FnOnce(Ctx<'_>) -> Result<T, String>) -> Result<T, String> {
    let runtime = Runtime::new().map_err(|error| error.to_string())?;
    runtime.set_memory_limit(MOST_MEMORY);
    runtime.set_max_stack_size(MOST_STACK);
    let context = Context::custom::<Intrinsics>(&runtime).map_err(|error| error.to_string())?;
    context.with(|context| context.eval::<(), _>(PRELUDE).catch(&context).map_err(reason))?;
    let until = cpu_time() + MOST_TIME;
    let late = Rc::new(Cell::new(false));
    let over = Rc::clone(&late);
    runtime.set_interrupt_handler(Some(Box::new(move || {
        over.set(cpu_time() > until);
        over.get()
    })));
    let outcome = context.with(work);
    if late.get() {
        return Err(too_long());
    }
    outcome
}

fn compile<'js>(context: &Ctx<'js>, variable: &str, expression: &str) -> Result<Function<'js>, String> {
    if has_big_number(expression) {
        return Err("numbers that end in `n` cannot be used".to_owned());
    }
    let function = format!("(function ({variable}) {{ \"use strict\"; return (\n{expression}\n); }})");
    context.eval::<Function<'_>, _>(function).catch(context).map_err(reason)
}

/// Whether there is a `BigInt` in it, such as `10n`, whose arithmetic has no bound.
fn has_big_number(expression: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '$');
    let mut words = expression.split(|c: char| !is_word(c));
    words.any(|word| word.len() > 1 && word.starts_with(|c: char| c.is_ascii_digit()) && word.ends_with('n'))
}

fn apply(context: &Ctx<'_>, variable: &str, expression: &str, input: String) -> Result<Value, String> {
    let function = compile(context, variable, expression)?;
    let input = context.json_parse(input).catch(context).map_err(reason)?;
    let result: JsValue<'_> = function.call((input,)).catch(context).map_err(reason)?;
    let text = context.json_stringify(result).catch(context).map_err(reason)?;
    let Some(text) = text else { return Ok(Value::Null) };
    let text = text.to_string().catch(context).map_err(reason)?;
    if text.len() > MOST_RESULT {
        return Err(format!("the result has more than {MOST_RESULT} bytes"));
    }
    serde_json::from_str(&text).map_err(|error| error.to_string())
}

fn reason(error: CaughtError<'_>) -> String {
    match error {
        CaughtError::Exception(exception) => exception.message().unwrap_or_else(|| "it failed".to_owned()),
        CaughtError::Value(_) => "it throws a value".to_owned(),
        CaughtError::Error(error) => error.to_string(),
    }
}

/// CPU time of this thread: a busy machine does not count.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use serde_json::json;

    use super::*;

    fn value(expression: &str, input: &Value) -> Result<Value, String> {
        run(|context| apply(&context, "params", expression, input.to_string()))
    }

    #[test]
    fn expressions_see_their_variable_and_nothing_of_the_host() {
        let params = json!({"id": "a", "items": [{"n": 1}, {"n": 2}]});
        assert_eq!(
            value("{id: params.id, sum: params.items.reduce((s, i) => s + i.n, 0)}", &params),
            Ok(json!({"id": "a", "sum": 3}))
        );
        assert_eq!(value("undefined", &params), Ok(Value::Null));
        for name in [
            "eval",
            "Function",
            "Proxy",
            "BigInt",
            "Uint8Array",
            "process",
            "require",
            "fetch",
            "console",
            "std",
            "os",
            "Deno",
            "setTimeout",
            "print",
            "load",
        ] {
            assert_eq!(value(&format!("typeof {name}"), &params), Ok(json!("undefined")), "{name}");
        }
        assert!(parse("params.x +").is_err() && parse("{a: 1}").is_ok() && parse("return 1").is_err());
        assert!(parse("(() => { while (true) {} })()").is_ok(), "parsing does not run it");
        assert!(value("params.missing.deeper", &params).expect_err("thrown").contains("undefined"));
    }

    #[test]
    fn what_takes_too_long_or_too_much_ends_soon() {
        for hostile in [
            "(() => { while (true) {} })()",
            "(() => { try { while (true) {} } catch { } finally { while (true) {} } })()",
            "(function f() { return f(); })()",
            "'x'.repeat(2 ** 28)",
            "Array(2 ** 28).fill('x')",
            "[...Array(1e9).keys()]",
            "/^(a+)+$/.test('a'.repeat(40) + '!')",
            "Array.prototype.indexOf.call({length: 2 ** 53 - 1}, 1)",
            "Array.prototype.includes.call({length: 2 ** 53 - 1}, 1)",
            "Array.prototype.join.call({length: 2 ** 32 - 2})",
            "Array.prototype.fill.call({length: 2 ** 53 - 1}, 1)",
            "Array.prototype.reverse.call({length: 2 ** 53 - 1})",
            "Array.prototype.lastIndexOf.call({length: 2 ** 53 - 1}, 1)",
            "Array.prototype.copyWithin.call({length: 2 ** 53 - 1}, 2 ** 30, 0)",
            "Array.prototype.findLast.call({length: 2 ** 53 - 1}, () => false)",
            "Array.prototype.flat.call({length: 2 ** 53 - 1})",
            "Array.prototype.splice.call({length: 2 ** 53 - 1}, 0, 1)",
            "Array.prototype.sort.call({length: 2 ** 32 - 2})",
            "Array.prototype.concat.call([], (() => { const a = []; a.length = 2 ** 32 - 1; return a; })())",
            "(() => { const a = []; a.length = 2 ** 32 - 1; return a.indexOf(1); })()",
            "(() => { const a = []; a.length = 2 ** 32 - 1; return a; })()",
            "JSON.stringify((() => { const a = []; a.length = 2 ** 32 - 1; return a; })())",
            "2n ** (2n ** 40n)",
            "(() => { let n = 3n; for (;;) n = n * n; })()",
            "(() => { let s = 'x'; for (;;) s += s; })()",
            "(() => { const a = []; for (;;) a.push({}); })()",
            "'a'.padEnd(2 ** 29, 'b')",
            "'a'.repeat(5e6).split('').map((x) => x + x).join('').length",
            "new Proxy({}, {ownKeys() { for (;;) {} }})",
            "(async () => { for (;;) {} })()",
            "new Int8Array(2 ** 30)",
            "String.fromCharCode.apply(null, {length: 2 ** 30})",
            "Math.max.apply(null, {length: 2 ** 32})",
            "Reflect.apply(Math.max, null, {length: 2 ** 53 - 1})",
            "Object.assign({}, 'x'.repeat(5e6))",
            "JSON.parse('['.repeat(1e6))",
            "new RegExp('('.repeat(1e5))",
            "'x'.repeat(1e6).replaceAll('x', 'y'.repeat(1e3))",
            "eval('for (;;) {}')",
            "Array.from({length: 2 ** 53 - 1})",
            "(() => { const a = Array(2e5).fill('x'); for (;;) a.indexOf('y'); })()",
            "(() => { const a = []; a.length = 2e5; for (;;) a.join(); })()",
            "(() => { const s = 'x'.repeat(4e6); for (;;) s.indexOf('y'); })()",
            "(() => { const s = 'x'.repeat(4e6); for (;;) (s + 'y')[7]; })()",
            "(() => { const o = {}; for (let i = 0; i < 1e5; i++) o['k' + i] = i; for (;;) Object.keys(o); })()",
            "(() => { const s = JSON.stringify(Array(1e5).fill(1)); for (;;) JSON.parse(s); })()",
            "(() => { const a = Array(2e5).fill(1); for (;;) a.slice().sort(); })()",
            "(() => { const a = Array(2e5).fill(1); for (;;) [...a]; })()",
            "(() => { const a = Array(2e5).fill(1); for (;;) `${a}`; })()",
            "(() => { const a = Array(2e5).fill(1); for (;;) a == 'x'; })()",
            "(() => { for (;;) /(x+x+)+y/.test('x'.repeat(30)); })()",
            "(() => {}).constructor('for (;;) {}')()",
            "[].constructor.constructor('return 1')()",
            "(() => { const s = new Set(Array(1e5).keys()); for (;;) new Set(s); })()",
            "'x'.repeat(4e6).normalize('NFKD')",
        ] {
            let began = Instant::now();
            let outcome = value(hostile, &json!({}));
            let took = began.elapsed();
            assert!(took < Duration::from_secs(15), "{hostile} took {took:?}: {outcome:?}");
        }
    }
}
