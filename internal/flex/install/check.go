package install

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/driver"
)

const (
	// initLimit is the time limit of a driver's init.
	initLimit = 10 * time.Second
	// slowInit is the duration above which init gets a warning: it is called at every change.
	slowInit = time.Second
	// busyTries is how often the start of an executable is retried while a process has it open for
	// writing.
	busyTries = 10
	// drainTimeout is how long the end of the output is waited for after init has ended: on a busy
	// host, another child of this process may have the pipe open for a moment.
	drainTimeout = 5 * time.Second
	// maxInitOutput is how many bytes of init's output are kept.
	maxInitOutput = 1 << 20
	// maxInterpreter is how many bytes of a script's first line the kernel reads.
	maxInterpreter = 255
	// maxScript is how many bytes of a script are searched for the names of tools.
	maxScript = 1 << 20
	// searchPath is the PATH that hosts give to drivers.
	searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// Checked is the result of Check.
type Checked struct {
	Findings []decide.Finding
	// Script says that an interpreter runs the executable.
	Script bool
	// Capabilities are those that init returned; nil if init was not called or returned no answer.
	Capabilities *decide.Capabilities
}

// Check inspects an executable before any host does: whether this host can start it, and what its
// init returns. If start is false, nothing is started and only the file is inspected: for drivers
// that run in another root filesystem than this process, as when a container installs them. It may
// be repeated.
func Check(ctx context.Context, name decide.Name, path string, start bool) Checked {
	c := &check{path: path, name: name, start: start}
	c.checkName()
	if c.file() && start && decide.Worst(c.Findings) != decide.Fail {
		c.init(ctx)
	}
	return c.Checked
}

type check struct {
	Checked
	name  decide.Name
	path  string
	start bool
}

func (c *check) add(name string, level decide.Level, message, next string) {
	c.Findings = append(c.Findings, decide.Finding{Check: name, Level: level, Message: message, Next: next})
}

// checkName checks whether the driver's name can also be a CSI driver's.
func (c *check) checkName() {
	if c.name.Vendor == "" {
		c.add("name", decide.Warn, "the driver has no vendor: after a restart Kubernetes cannot detach its volumes",
			"name it VENDOR/"+c.name.Driver)
		return
	}
	if _, err := c.name.CSI(); err != nil {
		c.add("name", decide.Warn, "the bridge cannot serve it: "+err.Error(), "choose a shorter name")
		return
	}
	c.add("name", decide.Pass, c.name.String()+", directory "+c.name.Dir(), "")
}

// file checks what can be seen without starting anything, and says whether there is an executable.
func (c *check) file() bool {
	info, err := os.Stat(c.path)
	switch {
	case err != nil:
		c.add("file", decide.Fail, err.Error(), "name an executable")
		return false
	case !info.Mode().IsRegular():
		c.add("file", decide.Fail, fmt.Sprintf("%s is a %s", c.path, kind(info)), "name an executable")
		return false
	case info.Size() == 0 || info.Size() > maxDriver:
		c.add("file", decide.Fail, fmt.Sprintf("it has %d bytes", info.Size()), "name an executable of at most 1 GiB")
		return false
	case info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0:
		c.add("file", decide.Warn, "it has the setuid or setgid bit, which the installed one has not", "")
	}
	f, err := os.Open(c.path)
	if err != nil {
		c.add("file", decide.Fail, err.Error(), "")
		return false
	}
	defer f.Close()
	head := make([]byte, maxScript)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		c.add("file", decide.Fail, err.Error(), "")
		return false
	}
	head = head[:n]
	switch {
	case bytes.HasPrefix(head, []byte("#!")):
		c.Script = true
		c.script(head)
	case bytes.HasPrefix(head, []byte(elf.ELFMAG)):
		c.program(f)
	default:
		c.add("format", decide.Fail, "it is neither a script (#!) nor an ELF program: the kernel does not start it",
			"begin it with #!/bin/sh")
	}
	return true
}

// script checks the first line of a script, and whether the tools that it names exist.
func (c *check) script(head []byte) {
	line, _, whole := bytes.Cut(head[2:], []byte("\n"))
	words := strings.Fields(string(line))
	switch {
	case bytes.HasSuffix(line, []byte("\r")):
		c.add("format", decide.Fail, "its first line ends with a carriage return, so that no interpreter is found",
			"save it with line ends of Unix")
		return
	case !whole || len(line)+2 > maxInterpreter || len(words) == 0:
		c.add("format", decide.Fail, "its first line names no interpreter that the kernel could read",
			"begin it with #!/bin/sh")
		return
	case !filepath.IsAbs(words[0]):
		c.add("format", decide.Fail, fmt.Sprintf("its interpreter %q is no absolute path", words[0]),
			"begin it with #!/bin/sh")
		return
	}
	c.interpreter(words)
	c.tools(head)
}

func (c *check) interpreter(words []string) {
	interpreter := words[0]
	if filepath.Base(interpreter) == "env" && len(words) > 1 {
		interpreter = words[len(words)-1]
	}
	if c.start {
		for _, program := range []string{words[0], interpreter} {
			if !isInPath(program) {
				c.add("interpreter", decide.Fail, program+" is not on this host", "install it, or write the driver for /bin/sh")
				return
			}
		}
	}
	c.add("format", decide.Pass, "a script for "+interpreter, "")
}

// program checks whether an ELF binary is for this machine, and whether its dynamic loader exists.
func (c *check) program(f *os.File) {
	e, err := elf.NewFile(f)
	if err != nil {
		c.add("format", decide.Fail, "its ELF header is broken: "+err.Error(), "build it anew")
		return
	}
	if want := machine(runtime.GOARCH); want != elf.EM_NONE && e.Machine != want {
		c.add("format", decide.Fail, fmt.Sprintf("it is for %s, this host is %s", e.Machine, want),
			"build it for "+runtime.GOARCH)
		return
	}
	loader := ""
	for _, p := range e.Progs {
		if p.Type == elf.PT_INTERP && p.Filesz < maxInterpreter {
			if b, err := io.ReadAll(p.Open()); err == nil {
				loader = string(bytes.TrimRight(b, "\x00"))
			}
		}
	}
	if loader == "" {
		c.add("format", decide.Pass, "a static program for "+runtime.GOARCH, "")
		return
	}
	if _, err := os.Stat(loader); c.start && err != nil {
		c.add("interpreter", decide.Fail, "the loader "+loader+" is not on this host", "link it statically")
		return
	}
	c.add("format", decide.Pass, "a program for "+runtime.GOARCH+", started by "+loader, "")
}

func machine(arch string) elf.Machine {
	switch arch {
	case "amd64":
		return elf.EM_X86_64
	case "arm64":
		return elf.EM_AARCH64
	case "riscv64":
		return elf.EM_RISCV
	case "ppc64le":
		return elf.EM_PPC64
	case "s390x":
		return elf.EM_S390
	}
	return elf.EM_NONE
}

// tools warns of programs that a script names and that the host does not have. Since the word may
// mean something else, it is only a warning.
func (c *check) tools(script []byte) {
	if !c.start {
		return
	}
	known := regexp.MustCompile(`(?:^|[\s;|&($` + "`" + `!])(jq|findmnt|flock|losetup|blkid|nsenter|curl|sshfs|rclone|s3fs|gcsfuse|blobfuse2?|goofys|rbd|iscsiadm|multipath|cryptsetup|lvs|lvcreate|mkfs\.[a-z0-9]+|mount\.[a-z0-9]+|resize2fs|xfs_growfs|python3?|perl)(?:[\s;|&)"']|$)`)
	var missing []string
	for line := range bytes.Lines(script) {
		if bytes.HasPrefix(bytes.TrimSpace(line), []byte("#")) {
			continue
		}
		for _, m := range known.FindAllSubmatch(line, -1) {
			tool := string(m[1])
			if !isInPath(tool) && !slices.Contains(missing, tool) {
				missing = append(missing, tool)
			}
		}
	}
	if len(missing) > 0 {
		c.add("tools", decide.Warn, "it names programs that are not on this host: "+strings.Join(missing, ", "),
			"install them")
		return
	}
	c.add("tools", decide.Pass, "the programs that it names are on this host, as far as they are known", "")
}

// isInPath says whether a program is in the PATH that hosts give to drivers.
func isInPath(name string) bool {
	if filepath.IsAbs(name) {
		return executable(name) == nil
	}
	for dir := range strings.SplitSeq(searchPath, ":") {
		if executable(filepath.Join(dir, name)) == nil {
			return true
		}
	}
	return false
}

func executable(path string) error {
	info, err := os.Stat(path)
	if err == nil && (!info.Mode().IsRegular() || info.Mode()&0o111 == 0) {
		err = exec.ErrNotFound
	}
	return err
}

// init starts the driver once. Unlike a host, it also checks what was printed beside the answer.
func (c *check) init(ctx context.Context) {
	r := c.run(ctx)
	if r.err != nil {
		c.add("init", decide.Fail, r.err.Error(), "run it by hand: "+filepath.Base(c.path)+" init")
		return
	}
	if len(bytes.TrimSpace(r.stderr.kept)) > 0 {
		c.add("standard-error", decide.Fail, "init writes to standard error, which a kubelet takes for a part of the answer",
			"send messages to a log")
	}
	answer, err := decide.ParseAnswer(decide.OpInit, r.exit, r.stdout.kept, r.stderr.kept)
	switch {
	case err != nil:
		c.add("init", decide.Fail, err.Error(), "run it by hand: "+filepath.Base(c.path)+" init")
		return
	case answer.Status != decide.Success:
		c.add("init", decide.Fail, "init answers "+string(answer.Status)+": "+decide.Redact(answer.Message, nil),
			"put right what it says")
		return
	}
	c.Capabilities = &answer.Capabilities
	if !bytes.Contains(bytes.ToLower(r.stdout.kept), []byte(`"capabilities"`)) {
		c.add("init-capabilities", decide.Warn, "init names no capabilities, so that it counts as a driver that attaches",
			`answer {"status":"Success","capabilities":{"attach":false}} if it does not`)
	} else if regexp.MustCompile(`(?i)"capabilities"\s*:\s*null`).Match(r.stdout.kept) {
		c.add("init-capabilities", decide.Fail, "init answers capabilities null, at which a kubelet crashes",
			"answer an object, or nothing")
	}
	level, next := decide.Pass, ""
	if r.took > slowInit {
		level, next = decide.Warn, "do nothing in init but answer: it runs whenever the file changes"
	}
	c.add("init", level, fmt.Sprintf("answers in %d ms: %s", r.took.Milliseconds(), Capabilities(answer.Capabilities)),
		next)
}

// Capabilities returns capabilities as a text for people.
func Capabilities(c decide.Capabilities) string {
	var words []string
	for _, one := range []struct {
		has  bool
		name string
	}{
		{c.Attach, "attach"},
		{c.FSGroup, "fsGroup"},
		{c.RequiresFSResize, "requiresFSResize"},
		{c.SELinuxRelabel, "selinuxRelabel"},
		{c.SupportsMetrics, "supportsMetrics"},
	} {
		if one.has {
			words = append(words, one.name)
		}
	}
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ",")
}

// result is the result of starting a driver.
type result struct {
	exit           int
	stdout, stderr head
	took           time.Duration
	err            error
}

func (c *check) run(ctx context.Context) *result {
	ctx, cancel := context.WithTimeout(ctx, initLimit)
	defer cancel()
	r := &result{}
	err := driver.WhenClosed(busyTries, func() error { return c.command(ctx, r) })
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		r.err = fmt.Errorf("init did not end within %v", initLimit)
	case errors.Is(err, exec.ErrWaitDelay):
		r.err = errors.New("init ended, but a process that it left behind keeps its output open")
	case errors.As(err, &exit):
		r.exit = exit.ExitCode()
	case err != nil:
		r.err = fmt.Errorf("start it: %w", err)
	}
	return r
}

// command starts the driver and waits until it has ended.
func (c *check) command(ctx context.Context, r *result) error {
	cmd := exec.CommandContext(ctx, c.path, string(decide.OpInit))
	cmd.Env = []string{"PATH=" + searchPath, "HOME=/", "LANG=C"}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = &r.stdout, &r.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = drainTimeout
	began := time.Now()
	err := cmd.Run()
	r.took = time.Since(began)
	return err
}

// head keeps the first bytes that are written to it and drops the rest.
type head struct{ kept []byte }

// Write never fails.
func (h *head) Write(p []byte) (int, error) {
	h.kept = append(h.kept, p[:min(len(p), maxInitOutput-len(h.kept))]...)
	return len(p), nil
}
