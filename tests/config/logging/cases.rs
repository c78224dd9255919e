//! Logging files as operators write them, and broken ones.

/// A logging file with its name. `before` has the names and texts of files that exist before it is read.
pub struct Case {
    pub name: &'static str,
    pub file: &'static str,
    pub text: &'static str,
    pub before: &'static [(&'static str, &'static str)],
}

const fn case(name: &'static str, file: &'static str, text: &'static str) -> Case {
    Case { name, file, text, before: &[] }
}

pub const READ: [Case; 21] = [
    case("no file, in the foreground", "default", ""),
    case("no file, with -d", "debug", ""),
    case(
        "defaults of all sections",
        "logging.conf",
        "[DEFAULT]\nformatter=simple\nargs=(sys.stdout,)\n\n[loggers]\nkeys=root\n\n[handlers]\nkeys=console\n\n\
        [formatters]\nkeys=simple\n\n[logger_root]\nlevel=INFO\nhandlers=console\n\n\
        [handler_console]\nclass=StreamHandler\n\n[formatter_simple]\nformat=SIMPLE %(levelname)s %(name)s %(message)s\n",
    ),
    case(
        "merge keys, and a duplicate key",
        "logging.yaml",
        "version: 1\ndisable_existing_loggers: false\nx-base: &base {class: logging.StreamHandler, formatter: plain}\n\
        formatters: {plain: {format: 'X %(levelname)s %(name)s %(message)s'}}\n\
        handlers: {console: {<<: *base, stream: ext://sys.stdout}}\n\
        root: {level: DEBUG, handlers: []}\nroot: {level: INFO, handlers: [console]}\n",
    ),
    case(
        "the file shipped with Nodepool 11",
        "logging.conf",
        "[formatters]\nkeys=simple\n\n\
        [loggers]\nkeys=root,nodepool,openstack\n\n\
        [handlers]\nkeys=console\n\n\
        [logger_root]\nlevel=WARNING\nhandlers=console\n\n\
        [logger_nodepool]\nlevel=DEBUG\nhandlers=console\nqualname=nodepool\npropagate=0\n\n\
        [logger_openstack]\nlevel=DEBUG\nhandlers=console\nqualname=openstack\npropagate=0\n\n\
        [handler_console]\nlevel=DEBUG\nclass=StreamHandler\nformatter=simple\nargs=(sys.stdout,)\n\n\
        [formatter_simple]\nformat=%(asctime)s %(levelname)s %(name)s: %(message)s\ndatefmt=\n",
    ),
    case(
        "a common file: one log, and another one for debug",
        "logging.conf",
        "[loggers]\nkeys=root,nodepool,requests,openstack,kazoo\n\n[handlers]\nkeys=console,debug,normal\n\n\
        [formatters]\nkeys=simple\n\n[logger_root]\nlevel=WARNING\nhandlers=console\n\n\
        [logger_requests]\nlevel=WARNING\nhandlers=debug,normal\nqualname=requests\n\n\
        [logger_openstack]\nlevel=WARNING\nhandlers=debug,normal\nqualname=openstack\n\n\
        [logger_kazoo]\nlevel=INFO\nhandlers=debug,normal\nqualname=kazoo\n\n\
        [logger_nodepool]\nlevel=DEBUG\nhandlers=debug,normal\nqualname=nodepool\n\n\
        [handler_console]\nlevel=WARNING\nclass=StreamHandler\nformatter=simple\nargs=(sys.stdout,)\n\n\
        [handler_debug]\nlevel=DEBUG\nclass=logging.handlers.TimedRotatingFileHandler\nformatter=simple\n\
        args=('debug.log', 'midnight', 1, 30,)\n\n\
        [handler_normal]\nlevel=INFO\nclass=logging.handlers.TimedRotatingFileHandler\nformatter=simple\n\
        args=('nodepool.log', 'midnight', 1, 30,)\n\n\
        [formatter_simple]\nformat=%(asctime)s %(levelname)s %(name)s: %(message)s\ndatefmt=\n",
    ),
    case(
        "ini with all features of configparser",
        "logging.ini",
        "# a comment\n[DEFAULT]\nname = own\nfolder=.\n[loggers]\nkeys: root , np\n[handlers]\nkeys=a,\n  b\n[formatters]\nkeys=f,g\n\
        [logger_root]\nlevel=NOTSET\nhandlers=a\n[logger_np]\nqualname = nodepool.PoolWorker\nhandlers=b\npropagate=0\nlevel=ERROR\n\
        [handler_a]\nclass=FileHandler\nformatter=f\nargs=(\"%(folder)s/%(name)s 100%%.log\", 'w')\n\
        [handler_b]\nCLASS=handlers.RotatingFileHandler\nformatter=g\nlevel=NOTSET\n\
        kwargs={'filename': 'b.log', 'maxBytes': 100, 'backupCount': 2}\n\
        [formatter_f]\nformat=%(levelname)-8s|%(name)10.10s|%(message)s\n\
        [formatter_g]\nformat={levelname:*^9}|{message}\nstyle={\nclass=logging.Formatter\n",
    ),
    case(
        "the multi-line formatter, in the middle of a line",
        "logging.yaml",
        "version: 1\nformatters:\n  m: {class: nodepool.logconfig.MultiLineFormatter, format: '%(levelname)s %(message)s [%(name)s]'}\n\
        \x20 s: {format: '%(levelname)s %(message)s [%(name)s]'}\n\
        handlers:\n  m: {class: logging.FileHandler, filename: m.log, formatter: m}\n\
        \x20 s: {class: logging.FileHandler, filename: s.log, formatter: s}\n\
        root: {level: INFO, handlers: [m, s]}\nloggers: {nodepool: {}}\n",
    ),
    case(
        "levels, numbers and propagation",
        "logging.yml",
        "version: 1\nhandlers:\n  all: {class: logging.FileHandler, filename: all.log, level: 20}\n\
        \x20 zk: {class: logging.handlers.WatchedFileHandler, filename: zk.log, level: WARNING}\n\
        loggers:\n  nodepool: {level: DEBUG, handlers: [all]}\n  nodepool.zk: {handlers: [zk], propagate: no}\n\
        \x20 nodepool.builder: {level: 50}\n  nodepool.PoolWorker.lab-main: {level: ERROR}\nroot: {level: ERROR, handlers: [all]}\n",
    ),
    case(
        "a root logger with level NOTSET",
        "logging.yaml",
        "version: 1\ndisable_existing_loggers: false\nhandlers: {a: {class: logging.FileHandler, filename: a.log}}\n\
        root: {level: NOTSET, handlers: [a]}\n",
    ),
    case(
        "a root logger without a level",
        "logging.yaml",
        "version: 1\ndisable_existing_loggers: false\nhandlers: {a: {class: logging.FileHandler, filename: a.log}}\n\
        root: {handlers: [a]}\n",
    ),
    case(
        "existing loggers are disabled",
        "logging.yaml",
        "version: 1\nhandlers: {a: {class: logging.FileHandler, filename: a.log}}\nroot: {level: DEBUG, handlers: [a]}\n",
    ),
    case(
        "existing loggers are disabled by an ini file, except below a named one",
        "logging.conf",
        "[loggers]\nkeys=root,zk\n[handlers]\nkeys=a\n[formatters]\nkeys=\n[logger_root]\nlevel=DEBUG\nhandlers=a\n\
        [logger_zk]\nqualname=nodepool.zk\nhandlers=\n[handler_a]\nclass=FileHandler\nargs=('a.log',)\n",
    ),
    case("no handler: the last resort", "logging.yaml", "version: 1\nloggers: {nodepool: {level: DEBUG}}\n"),
    case(
        "only a null handler",
        "logging.yaml",
        "version: 1\nhandlers: {n: {class: logging.NullHandler}}\nloggers: {nodepool: {level: DEBUG}}\nroot: {handlers: [n]}\n",
    ),
    case(
        "filters by name",
        "logging.json",
        "{\"version\": 1, \"filters\": {\"zk\": {\"name\": \"nodepool.zk\"}, \"all\": {}},\n\
        \"handlers\": {\"a\": {\"class\": \"logging.FileHandler\", \"filename\": \"a.log\", \"filters\": [\"zk\", \"all\"]},\n\
        \"b\": {\"class\": \"logging.FileHandler\", \"filename\": \"b.log\"}},\n\
        \"loggers\": {\"nodepool\": {\"level\": \"DEBUG\", \"handlers\": [\"a\"]},\n\
        \"nodepool.NodePool\": {\"handlers\": [\"b\"], \"filters\": [\"zk\"]}}, \"root\": {\"level\": \"DEBUG\", \"handlers\": [\"b\"]}}\n",
    ),
    Case {
        name: "existing files",
        file: "logging.yaml",
        text: "version: 1\nhandlers:\n  a: {class: logging.FileHandler, filename: a.log, mode: w}\n\
            \x20 b: {class: logging.FileHandler, filename: b.log, mode: a}\n\
            \x20 c: {class: logging.FileHandler, filename: c.log, delay: true}\n\
            \x20 d: {class: logging.FileHandler, filename: d.log, delay: true, level: CRITICAL}\n\
            \x20 e: {class: logging.handlers.RotatingFileHandler, filename: e.log, mode: w, maxBytes: 1000, backupCount: 1}\n\
            loggers: {nodepool: {level: ERROR, handlers: [a, b, c, e]}, nodepool.zk: {level: ERROR, handlers: [d]}}\n",
        before: &[("a.log", "old\n"), ("b.log", "old\n"), ("c.log", "old\n"), ("e.log", "old\n")],
    },
    case(
        "dollars, braces and times",
        "logging.yaml",
        "version: 1\nformatters:\n  d: {style: $, format: '$asctime ${levelname}_$$ $message', datefmt: '%Y-%m-%dT%H:%M:%S%z'}\n\
        \x20 b: {style: '{', format: '{{{levelno:+05d}}} {name:.>12.8} {message!s:<20}| {process:d} {msecs:03.0f} {created:.3f}'}\n\
        \x20 p: {format: '%(asctime)s.%(msecs)03d %(levelno)s %(process)d %(threadName)s %(processName)s %%', datefmt: '%d.%m. %H:%M'}\n\
        handlers:\n  d: {class: logging.FileHandler, filename: d.log, formatter: d}\n\
        \x20 b: {class: logging.FileHandler, filename: b.log, formatter: b}\n\
        \x20 p: {class: logging.FileHandler, filename: p.log, formatter: p}\n\
        loggers: {nodepool: {level: DEBUG, handlers: [d, b, p]}}\n",
    ),
    case(
        "standard output and standard error",
        "logging.yaml",
        "version: 1\nformatters: {s: {format: '%(name)s %(message)s'}}\nhandlers:\n\
        \x20 o: {class: logging.StreamHandler, stream: 'ext://sys.stdout', formatter: s}\n\
        \x20 e: {class: logging.StreamHandler, level: ERROR, formatter: s}\n\
        loggers: {nodepool: {level: INFO, handlers: [o, e]}}\n",
    ),
    case(
        "size rotation",
        "logging.yaml",
        "version: 1\nformatters: {s: {format: '%(name)s %(message)s'}}\nhandlers:\n\
        \x20 a: {class: logging.handlers.RotatingFileHandler, filename: a.log, maxBytes: 120, backupCount: 3, formatter: s}\n\
        \x20 b: {class: logging.handlers.RotatingFileHandler, filename: b.log, maxBytes: 60, backupCount: 0, formatter: s}\n\
        \x20 c: {class: logging.handlers.RotatingFileHandler, filename: c.log, backupCount: 5, formatter: s}\n\
        loggers: {nodepool: {level: DEBUG, handlers: [a, b, c]}}\n",
    ),
    case(
        "values from elsewhere",
        "logging.yaml",
        "version: 1\nown: {files: [x.log, y.log], level: ERROR}\nhandlers:\n\
        \x20 a: {class: logging.FileHandler, filename: 'cfg://own.files[1]', level: 'cfg://own.level'}\n\
        loggers: {nodepool: {level: DEBUG, handlers: [a]}}\n",
    ),
];

/// Files that Nodepool 11 and our programs reject: name, text, and the beginning of our message.
pub const REFUSED: [(&str, &str, &str); 14] = [
    ("logging.conf", "nonsense\n", "logging.conf: line 1: a section such as [loggers] is expected"),
    ("logging.conf", "[loggers]\nkeys=root\n", "logging.conf: there is no section [formatters]"),
    (
        "logging.conf",
        "[loggers]\nkeys=root\n[handlers]\nkeys=a\n[formatters]\nkeys=\n[logger_root]\nhandlers=a\n[handler_a]\n\
        class=FileHandler\nargs=(open('x'),)\n",
        "logging.conf: [handler_a] args: `,` or `)` is expected at `('x'),)`",
    ),
    (
        "logging.conf",
        "[loggers]\nkeys=root\n[handlers]\nkeys=a\n[formatters]\nkeys=\n[logger_root]\nhandlers=b\n[handler_a]\nclass=NullHandler\n",
        "logging.conf: the root logger: there is no handler `b`",
    ),
    ("logging.conf", "[a]\nb=1\nb=2\n", "logging.conf: line 3: duplicate key `b` in [a]"),
    ("logging.conf", "", "logging.conf: there is no section [formatters]"),
    ("logging.yaml", "- a\n", "logging.yaml: line 1: a section such as [loggers] is expected"),
    ("logging.yaml", "version: 1\nhandlers: {a: [\n", "logging.yaml: unclosed bracket '[' (line 2, column 15)"),
    ("logging.yaml", "version: 2\n", "logging.yaml: `version` must be 1, not 2"),
    ("logging.yaml", "version: 1\nroot: {level: LOUD}\n", "logging.yaml: the root logger: unknown level `LOUD`"),
    ("logging.yaml", "version: 1\nroot: {handlers: [x]}\n", "logging.yaml: the root logger: there is no handler `x`"),
    (
        "logging.yaml",
        "version: 1\nhandlers: {a: {class: logging.FileHandler}}\n",
        "logging.yaml: handler `a`: `filename` is missing",
    ),
    (
        "logging.yaml",
        "version: 1\nformatters: {f: {format: '{message', style: '{'}}\n",
        "logging.yaml: formatter `f`: `{` or `}` at character 1 does not belong to a field",
    ),
    (
        "logging.yaml",
        "version: 1\nhandlers: {a: {class: logging.FileHandler, filename: missing/x.log}}\n",
        "cannot open the log file missing/x.log",
    ),
];
