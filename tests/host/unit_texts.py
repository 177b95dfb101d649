"""Unit texts as people and generators write them: every legal form of a command line and of what feeds it."""

import random
from collections.abc import Sequence

from tests.host.unit_cases import RECORDER

# Words of an ExecStart= text in every form that systemd has for them.
_WORDS = [
    "plain", "--flag=value", "'single quoted'", '"double \\" quoted"', "mid'dle q'uote", "a'b'\"c\"d",
    "--json='{\"a\": 1}'", '"{\\"a\\": [1, 2]}"', "{\"bare\":1}", "\\x41\\n", "\\u00e9", "\\U0001f642", "\\101", "\\s",
    "\\ttab", "\\a\\b\\f\\v", "$A", "${A}", "$B", "${B}", "$C", "${C}", "$UNSET", "${UNSET}", "pre${A}post", '"$A"',
    "'${B}'", "$$", "$$A", "$${A}", "x$A", "${UNFINISHED", "${A:-b}", "${A}${B}", "$A$B", "$A-", "${}", "$", "x$",
    "%%", "%n", "%p", "%N", "%i", "100%%", "50%%off", "a%%n", "%t/x", "%H", "%h", "%u", "%U", "''", '""', "\\;", "a;b",
    "';'", "#hash", "it\\'s", "\"it's\"", "'\\d+'", "\\d", "日本", "'é\\\\'", "|", ">", "&&", "*", "~", "`date`",
    "${PATH}", "$LANG", "${HOME}", "$USER", "${RUNTIME_DIRECTORY}", "${STATE_DIRECTORY}/x", "$FOO", "${FOO}",
    "${CREDENTIALS_DIRECTORY}/key", "%d/key", "$LOGNAME", "${SHELL}", "=", "-", "--", "@x", "+y", ":z", "!w",
]  # fmt: skip
_GAPS = [" ", " ", " ", "  ", "\t", " \\\n", " \\\n    ", " \\\n# a comment\n  ", " \\\n  ; one more \\\n # two\n\t"]
# What a value in Environment= may be written as; NAME= goes in front of it.
_VALUES = [
    "one", "'one two'", '"three  four"', "a\\x20b", "'a \\'b c\\' \\\\\\\\'", "\"d \\\"e f\\\" g\"", "", "''", "%n",
    "%%", "$B", "${B}", "x=y=z", "日本", "'tab\\tline\\nend'", "'-a -b=\"c d\"'", "\\\\\\\\", "'\\\\\\\\x20 \\\\\\\\'",
    "%i-%p", "'#'", ";",
]  # fmt: skip
_FILE_PIECES = [
    "a", "b c", " ", "  ", "'", '"', "\\", "$", "`", "=", "#", ";", "\t", "\n", "\nB=", "\n# note ", "\nC='", '\nA="',
    "\\\n", "é", "\r\n", "\n;x\\\nC=1", "\nexport A=1", "\n D = x", "%n", "\nB=${A}", "'q w'", '"\\x41 \\" $B"',
    "\nA B=1",
]  # fmt: skip
_EXTRAS = [
    "User=operator", "User=nobody", "User=root", "DynamicUser=yes", "Group=operator", "PassEnvironment=FOO LANG",
    "UnsetEnvironment=A", "UnsetEnvironment=B=one C", "UnsetEnvironment=LANG PATH", "RuntimeDirectory=%p-dir other",
    "StateDirectory=%p-%i", "CacheDirectory=%p%i\nLogsDirectory=%p%i\nConfigurationDirectory=%p%i",
    "ExecSearchPath=/usr/bin:/bin", "SetCredential=key:value", "WorkingDirectory=/tmp", "PrivateTmp=no", "UMask=0",
    "Environment=", "EnvironmentFile=", "EnvironmentFile=-/etc/texts/absent", "EnvironmentFile=/etc/texts/glob-*.env",
    "Environment=FOO=own", "SetLoginEnvironment=no",
]  # fmt: skip

_PREFIXES = ["", "", "", "-", ":", "@", "-@", ":-", "@:", "+", "!", "!!", "-:+"]
# What systemd mostly refuses, ignores or cuts short.
_BROKEN = [
    "'",
    '"',
    "\\",
    "%",
    "$",
    "{",
    "}",
    ";",
    " ",
    "\t",
    "\n",
    "%Z",
    "\\x",
    "\\\n\n",
    " ; /bin/true",
    "\r\n",
    "\\ \n",
]
# One directive of every kind that systemd 252 knows for a service.
EVERYTHING = """\
[Unit]
Description=production of %n
Documentation=man:x(1)
After=network.target big-lm.service
Before=big-nginx.service
Wants=network-online.target
Requires=big-lm.service
PartOf=big-stack.target
Conflicts=big-other.service
OnFailure=big-alarm@%n.service
OnSuccess=big-ok.service
PropagatesReloadTo=big-nginx.service
ReloadPropagatedFrom=big-stack.target
StopPropagatedFrom=big-lm.service
JoinsNamespaceOf=big-lm.service
RequiresMountsFor=/data /srv/%N
ConditionPathExists=/etc
ConditionHost=|!nothing
AssertPathIsDirectory=/usr
AssertPathExists=!/no%p
IgnoreOnIsolate=yes
StopWhenUnneeded=no
AllowIsolate=no
DefaultDependencies=yes
CollectMode=inactive-or-failed
StartLimitIntervalSec=10
StartLimitBurst=9
JobTimeoutSec=1h
[Service]
Type=exec
ExitType=main
Environment=A=1 "B=x %n y" C=%p
EnvironmentFile=-/etc/big.env
PassEnvironment=LANG
UnsetEnvironment=GONE "X=1"
ExecCondition=/bin/true %n
ExecStartPre=-+/bin/echo "pre %i %n" $A
ExecStartPre=/bin/true
ExecStart=/bin/sh -c 'kill -STOP $$$$' standing %n
ExecStartPost=+/bin/sh -c 'echo $MAINPID >/run/big.pid'
ExecReload=/bin/kill -HUP $MAINPID
ExecStop=-/bin/echo stop %N
ExecStopPost=-/bin/echo stopped
Restart=always
RestartSec=3
TimeoutStartSec=20
TimeoutStopSec=30
TimeoutAbortSec=40
WatchdogSec=200
WatchdogSignal=SIGQUIT
RuntimeMaxSec=8d
NotifyAccess=all
KillMode=process
KillSignal=SIGINT
RestartKillSignal=SIGTERM
FinalKillSignal=SIGQUIT
SendSIGHUP=yes
SuccessExitStatus=143 SIGUSR1 75
RestartPreventExitStatus=7
OOMPolicy=continue
OOMScoreAdjust=-500
FileDescriptorStoreMax=4
RemainAfterExit=yes
PIDFile=/run/big.pid
Nice=-5
CPUSchedulingPolicy=batch
IOSchedulingClass=best-effort
IOSchedulingPriority=2
CPUAffinity=0
NUMAPolicy=default
TimerSlackNSec=1ms
CoredumpFilter=all
User=operator
Group=operator
SupplementaryGroups=adm
WorkingDirectory=-/home/operator
UMask=0027
RuntimeDirectory=big %p-more
RuntimeDirectoryMode=0750
RuntimeDirectoryPreserve=restart
StateDirectory=big
CacheDirectory=big
LogsDirectory=big
ConfigurationDirectory=big
LimitNOFILE=100000
LimitMEMLOCK=infinity
LimitNPROC=4000:5000
LimitCORE=0
LimitSTACK=64M
Slice=big-llm.slice
Delegate=yes
CPUAccounting=yes
CPUWeight=200
CPUQuota=80%
MemoryAccounting=yes
MemoryHigh=1G
MemoryMax=2G
MemorySwapMax=0
TasksMax=500
IOWeight=300
DeviceAllow=/dev/null rw
DevicePolicy=auto
IPAddressDeny=10.9.9.9
AllowedCPUs=0
Personality=x86-64
PrivateTmp=yes
PrivateDevices=no
ProtectSystem=full
ProtectHome=no
ProtectKernelTunables=yes
ReadWritePaths=-/data
ReadOnlyPaths=-/srv
InaccessiblePaths=-/boot
BindPaths=/opt
BindReadOnlyPaths=/srv
TemporaryFileSystem=/mnt
NoNewPrivileges=yes
CapabilityBoundingSet=CAP_SYS_NICE CAP_IPC_LOCK CAP_KILL CAP_NET_BIND_SERVICE
AmbientCapabilities=CAP_IPC_LOCK
SystemCallFilter=~@clock
SystemCallErrorNumber=EPERM
SystemCallArchitectures=native
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=no
LockPersonality=yes
RestrictRealtime=no
KeyringMode=private
SecureBits=keep-caps
LoadCredential=key:/etc/hostname
SetCredential=other:a%%b
StandardInput=data
StandardInputText=hello %n
StandardOutput=append:/tmp/big.log
StandardError=inherit
SyslogIdentifier=bigd
SyslogFacility=local3
SyslogLevel=notice
LogLevelMax=info
LogExtraFields=UNIT=%n "TEAM=a b"
LogRateLimitIntervalSec=5
LogRateLimitBurst=10
TTYPath=/dev/null
IgnoreSIGPIPE=no
NonBlocking=yes
ManagedOOMSwap=auto
ManagedOOMPreference=avoid
RestrictSUIDSGID=no
ProtectProc=invisible
ProcSubset=all
[Install]
WantedBy=multi-user.target
Alias=big-alias.service
"""
# Where systemd splits, quotes and escapes a value it does so in one of several ways.
NAMED_BY_INSTANCE = """\
[Unit]
RequiresMountsFor=/srv/%i /srv/%I
ConditionPathExists=!/srv/%i
JoinsNamespaceOf=o%i.service
[Service]
Type=exec
Environment=I=%I "J=a %I b" K='%i'
ReadWritePaths=-/srv/%i "-/srv/%I"
ReadOnlyPaths=-/srv/%i -/srv/%I
InaccessiblePaths=-/srv/%i
BindPaths=-/srv/%i:/mnt -/srv/%I
TemporaryFileSystem=/mnt/%i:mode=0700
RuntimeDirectory=o%i
StateDirectory=o%i
ExecSearchPath=/srv/%i /bin
LogExtraFields=A=%I "B=%i"
SyslogIdentifier=%i
LoadCredential=a:/etc/hostname
SetCredential=b:%i%%
StandardInput=data
StandardInputText=%i %I
WorkingDirectory=-/srv/%I
ExecStartPre=/bin/true %i "%I"
ExecStart=/bin/sh -c 'kill -STOP $$$$' standing %i %I "%I/x" '%i' ${I} $J
"""


def command(rng: random.Random, name: str, *, is_broken: bool = False) -> str:
    """Return an ExecStart= value that records under a name what its process is given."""
    pieces = [*_WORDS, *(_BROKEN * 3 if is_broken else [])]
    gaps = [" ", "", *_GAPS] if is_broken else _GAPS
    line = "".join(rng.choice(pieces) + rng.choice(gaps) for _ in range(rng.randrange(14)))
    prefix = rng.choice(_PREFIXES)
    own = " its-own-name" if "@" in prefix else ""
    return f"{prefix}/bin/sh{own} {RECORDER} {name}{rng.choice(_GAPS)}{line}"


def environment_lines(rng: random.Random, files: Sequence[str]) -> list[str]:
    """Return lines that shape a process's environment: assignments, the files given, resets, users, directories."""
    lines = [f"EnvironmentFile={file}" for file in files]
    lines += [
        "Environment=" + " ".join(f"{rng.choice('ABC')}={rng.choice(_VALUES)}" for _ in range(rng.randrange(1, 4)))
        for _ in range(rng.randrange(4))
    ]
    lines += rng.sample(_EXTRAS, rng.randrange(5))
    rng.shuffle(lines)
    return lines


def environment_file(rng: random.Random) -> str:
    """Return an environment file's text, mostly odd."""
    return "A=" + "".join(rng.choice(_FILE_PIECES) for _ in range(rng.randrange(14)))
