package systemd

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"

	"volplane.dev/volplane/test/internal/planetest"
)

const unitFile = "../../deploy/systemd/volplane.service"

// confinedProgram is the environment variable with which TestConfined runs as a shell under the unit's
// restrictions.
const confinedProgram = "VOLPLANE_TEST_CONFINED"

// TestUnitConfines runs a volume's whole life under the restrictions of the systemd unit.
func TestUnitConfines(t *testing.T) {
	bin, err := filepath.Abs("../../bin/volplane")
	if err != nil {
		t.Fatal(err)
	}
	// The child reads it, too, but go test only remembers what this process reads.
	readUnit(t)
	// Names of sockets are short, so the directory's is too.
	dir, err := os.MkdirTemp("", "u-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		planetest.UnmountBelow(t, dir)
		_ = os.RemoveAll(dir)
	})
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestConfined$")
	c.Env = append(os.Environ(), "TMPDIR="+dir, confinedProgram+"="+bin)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"NoNewPrivs:\t1\n", "Seccomp:\t2\n", "a volume's whole life"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the program does not say %q:\n%s", want, out)
		}
	}
}

// TestConfined is the process that TestUnitConfines starts. Alone it does nothing.
func TestConfined(t *testing.T) {
	bin := os.Getenv(confinedProgram)
	if bin == "" {
		return
	}
	u := readUnit(t)
	// A restriction stays with its thread through execve, which ends the other threads.
	runtime.LockOSThread()
	for _, name := range u.dropped {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability(t, name), 0, 0, 0); err != nil {
			t.Fatalf("drop %s: %v", name, err)
		}
	}
	if err := seccomp.LoadFilter(seccomp.Filter{NoNewPrivs: true, Policy: u.policy(t)}); err != nil {
		t.Fatal(err)
	}
	probe(t)
	script := `grep -E '^(CapBnd|NoNewPrivs|Seccomp):' /proc/self/status && "$0" demo && echo "a volume's whole life"`
	t.Fatal(syscall.Exec("/bin/sh", []string{bin, "-c", script, bin}, os.Environ()))
}

// probe requires that the restrictions are in force, and that they allow setting the group of a volume.
func probe(t *testing.T) {
	t.Helper()
	if _, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, 0); !errors.Is(err, unix.EAFNOSUPPORT) {
		t.Fatalf("a raw socket: %v", err)
	}
	if fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM, 0); err != nil {
		t.Fatalf("a socket to the kernel: %v", err)
	} else if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
	if err := unix.DeleteModule("no-such-module", 0); !errors.Is(err, unix.EPERM) {
		t.Fatalf("a module taken away: %v", err)
	}
	if _, err := unix.PtraceGetEventMsg(os.Getpid()); !errors.Is(err, unix.EPERM) {
		t.Fatalf("debugging: %v", err)
	}
	if left, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SYS_MODULE, 0, 0, 0); err != nil || left != 0 {
		t.Fatalf("CAP_SYS_MODULE: %d, %v", left, err)
	}
	dir := t.TempDir()
	if err := unix.Chmod(dir, unix.S_ISGID|0o770); err != nil {
		t.Fatalf("setgid for a volume's group: %v", err)
	}
}

// unit has the restrictions of a systemd unit.
type unit struct {
	dropped, families, calls []string
}

// readUnit reads the unit. The test applies each setting, or knows that it does not restrict programs. An
// unknown setting fails the test.
func readUnit(t *testing.T) unit {
	t.Helper()
	data, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	_, service, _ := strings.Cut(string(data), "[Service]\n")
	service, _, _ = strings.Cut(service, "\n[")
	var u unit
	for line := range strings.Lines(service) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || strings.HasPrefix(key, "#") {
			continue
		}
		u.take(t, key, value)
	}
	if len(u.dropped) == 0 || len(u.families) == 0 || len(u.calls) == 0 {
		t.Fatalf("the unit takes away %v", u)
	}
	return u
}

// take applies one setting.
func (u *unit) take(t *testing.T, key, value string) {
	t.Helper()
	list, denied := strings.CutPrefix(value, "~")
	switch {
	case key == "CapabilityBoundingSet" && denied:
		u.dropped = append(u.dropped, strings.Fields(list)...)
	case key == "SystemCallFilter" && denied:
		u.calls = append(u.calls, members(t, strings.Fields(list))...)
	case key == "RestrictAddressFamilies" && !denied:
		u.families = append(u.families, strings.Fields(list)...)
	case slices.Contains([]string{
		"NoNewPrivileges=yes", "LockPersonality=yes", "RestrictRealtime=yes", "SystemCallErrorNumber=EPERM",
	}, key+"="+value):
		// They are applied always.
	case key+"="+value == "SystemCallArchitectures=native":
		// The programs here are of the host's architecture.
	case !slices.Contains([]string{
		"Type", "ExecStart", "StateDirectory", "StateDirectoryMode", "UMask", "Restart", "RestartSec", "TimeoutStartSec",
		"WatchdogSec", "KillMode", "TimeoutStopSec", "LimitNOFILE",
	}, key):
		t.Fatalf("the unit says %s=%s, which this test does not apply; nothing may give the service a mount namespace", key,
			value)
	}
}

// members returns the system calls in the groups that exist on this machine.
func members(t *testing.T, groups []string) []string {
	t.Helper()
	data, err := os.ReadFile("testdata/syscalls.txt")
	if err != nil {
		t.Fatal(err)
	}
	machine, err := arch.GetInfo("")
	if err != nil {
		t.Fatal(err)
	}
	var calls []string
	for _, group := range groups {
		_, list, ok := strings.Cut(string(data), "\n"+group+" ")
		if !ok {
			t.Fatalf("what is %s?", group)
		}
		list, _, _ = strings.Cut(list, "\n")
		for _, call := range strings.Fields(list) {
			if _, ok := machine.SyscallNames[call]; ok {
				calls = append(calls, call)
			}
		}
	}
	return calls
}

// policy returns the seccomp policy that systemd makes of the unit.
func (u unit) policy(t *testing.T) seccomp.Policy {
	t.Helper()
	refuse := func(e unix.Errno) seccomp.Action { return seccomp.ActionErrno | seccomp.Action(e) }
	const policyArgument, familyArgument = 1, 0
	var others seccomp.ArgumentConditions
	for _, name := range u.families {
		others = append(others, seccomp.Condition{
			Argument: familyArgument, Operation: seccomp.NotEqual, Value: family(t, name),
		})
	}
	denied := seccomp.SyscallGroup{
		Action: refuse(unix.EPERM), Names: u.calls,
		NamesWithCondtions: []seccomp.NameWithConditions{
			{Name: "personality", Conditions: seccomp.ArgumentConditions{
				{Operation: seccomp.NotEqual, Value: 0}, {Operation: seccomp.NotEqual, Value: 0xffffffff},
			}},
		},
	}
	for _, realtime := range []uint64{unix.SCHED_FIFO, unix.SCHED_RR, unix.SCHED_DEADLINE} {
		denied.NamesWithCondtions = append(denied.NamesWithCondtions, seccomp.NameWithConditions{
			Name:       "sched_setscheduler",
			Conditions: seccomp.ArgumentConditions{{Argument: policyArgument, Operation: seccomp.Equal, Value: realtime}},
		})
	}
	return seccomp.Policy{DefaultAction: seccomp.ActionAllow, Syscalls: []seccomp.SyscallGroup{denied, {
		Action:             refuse(unix.EAFNOSUPPORT),
		NamesWithCondtions: []seccomp.NameWithConditions{{Name: "socket", Conditions: others}},
	}}}
}

func family(t *testing.T, name string) uint64 {
	t.Helper()
	n, ok := map[string]uint64{
		"AF_UNIX": unix.AF_UNIX, "AF_INET": unix.AF_INET, "AF_INET6": unix.AF_INET6, "AF_NETLINK": unix.AF_NETLINK,
		"AF_ALG": unix.AF_ALG,
	}[name]
	if !ok {
		t.Fatalf("what is %s?", name)
	}
	return n
}

func capability(t *testing.T, name string) uintptr {
	t.Helper()
	all := map[string]uintptr{
		"CAP_AUDIT_CONTROL":      unix.CAP_AUDIT_CONTROL,
		"CAP_AUDIT_READ":         unix.CAP_AUDIT_READ,
		"CAP_AUDIT_WRITE":        unix.CAP_AUDIT_WRITE,
		"CAP_BLOCK_SUSPEND":      unix.CAP_BLOCK_SUSPEND,
		"CAP_BPF":                unix.CAP_BPF,
		"CAP_CHECKPOINT_RESTORE": unix.CAP_CHECKPOINT_RESTORE,
		"CAP_IPC_OWNER":          unix.CAP_IPC_OWNER,
		"CAP_MAC_ADMIN":          unix.CAP_MAC_ADMIN,
		"CAP_MAC_OVERRIDE":       unix.CAP_MAC_OVERRIDE,
		"CAP_NET_BROADCAST":      unix.CAP_NET_BROADCAST,
		"CAP_NET_RAW":            unix.CAP_NET_RAW,
		"CAP_PERFMON":            unix.CAP_PERFMON,
		"CAP_SYSLOG":             unix.CAP_SYSLOG,
		"CAP_SYS_BOOT":           unix.CAP_SYS_BOOT,
		"CAP_SYS_MODULE":         unix.CAP_SYS_MODULE,
		"CAP_SYS_PACCT":          unix.CAP_SYS_PACCT,
		"CAP_SYS_TIME":           unix.CAP_SYS_TIME,
		"CAP_SYS_TTY_CONFIG":     unix.CAP_SYS_TTY_CONFIG,
		"CAP_WAKE_ALARM":         unix.CAP_WAKE_ALARM,
	}
	n, ok := all[name]
	if !ok {
		t.Fatalf("what is %s?", name)
	}
	return n
}
