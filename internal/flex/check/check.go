package check

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
	"volplane.dev/volplane/internal/workshop/finding"
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
	// maxInterpreter is how many bytes of a script's first line the kernel reads.
	maxInterpreter = 255
	// maxScript is how many bytes of a script are searched for the names of tools.
	maxScript = 1 << 20
)

// MaxSize is the size limit of an executable, in bytes.
const MaxSize = 1 << 30

// Checked is the result of Driver.
type Checked struct {
	Findings []finding.Finding
	// Script says that an interpreter runs the executable.
	Script bool
	// Capabilities are those that init returned; nil if init was not called or returned no answer.
	Capabilities *decide.Capabilities
}

// Driver inspects an executable before any host does: whether this host can start it, and what its
// init returns. If start is false, nothing is started and only the file is inspected: for drivers
// that run in another root filesystem than this process, as when a container installs them. It may
// be repeated.
func Driver(ctx context.Context, name decide.Name, path string, start bool) Checked {
	c := &check{path: path, name: name, start: start}
	c.checkName()
	c.file()
	if start && finding.Worst(c.Findings) != finding.Fail {
		c.init(ctx)
	}
	return c.Checked
}

// File inspects only whether this host can start an executable. Nothing is started.
func File(path string) []finding.Finding {
	c := &check{path: path, start: true}
	c.file()
	return c.Findings
}

// UnknownOperation is an operation that does not exist.
const UnknownOperation decide.Operation = "volplanedoctor"

// Nowhere is the argument of the unknown operation: a path at which nothing can be created or
// mounted, whatever the driver takes the operation for.
const Nowhere = "/dev/null/nothing"

// Unknown calls an operation that does not exist, as a later host may. It may be repeated.
func Unknown(ctx context.Context, path string) finding.Finding {
	c := &check{path: path}
	r := c.run(ctx, UnknownOperation, Nowhere)
	if r.err != nil {
		return finding.Finding{
			Check: "unknown-operation", Level: finding.Warn, Message: plain(r.err.Error()),
			Next: finding.Author.Should("answer Not supported immediately"),
		}
	}
	f := decide.JudgeUnknown(r.call)
	f.Message = plain(f.Message)
	return f
}

type check struct {
	Checked
	name  decide.Name
	path  string
	start bool
}

func (c *check) pass(name, message string) {
	c.Findings = append(c.Findings, finding.Finding{Check: name, Level: finding.Pass, Message: message})
}

func (c *check) warn(name, message, next string) {
	c.Findings = append(c.Findings, finding.Finding{Check: name, Level: finding.Warn, Message: plain(message), Next: next})
}

// fail adds a finding about a driver that no host can use.
func (c *check) fail(name, message, next string) {
	c.Findings = append(c.Findings, finding.Finding{
		Check: name, Level: finding.Fail, Message: plain(message), Next: next, Breaks: decide.Hosts(),
	})
}

// plain returns a text as one printable line of limited length.
func plain(text string) string { return decide.Redact(text, nil) }

// checkName checks whether the driver's name can also be a CSI driver's.
func (c *check) checkName() {
	if c.name.Vendor == "" {
		c.warn("name", "the driver has no vendor: after a restart Kubernetes cannot detach its volumes",
			finding.Administrator.Should("name it VENDOR/"+c.name.Driver))
		return
	}
	if _, err := c.name.CSI(); err != nil {
		c.warn("name", "the bridge cannot serve it: "+err.Error(), finding.Administrator.Should("choose a shorter name"))
		return
	}
	c.pass("name", c.name.String()+", directory "+c.name.Dir())
}

// file checks what can be seen without starting anything.
func (c *check) file() {
	info, err := os.Stat(c.path)
	switch {
	case err != nil:
		c.fail("file", err.Error(), finding.Administrator.Should("name an executable"))
		return
	case !info.Mode().IsRegular():
		c.fail("file", c.path+" is not a regular file", finding.Administrator.Should("name an executable"))
		return
	case info.Size() == 0 || info.Size() > MaxSize:
		c.fail("file", fmt.Sprintf("it has %d bytes", info.Size()),
			finding.Administrator.Should("name an executable of at most 1 GiB"))
		return
	}
	c.mode(info.Mode())
	f, err := os.Open(c.path)
	if err != nil {
		c.fail("file", err.Error(), finding.Administrator.Should("make it readable"))
		return
	}
	defer f.Close()
	head := make([]byte, maxScript)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		c.fail("file", err.Error(), finding.Administrator.Should("check the disk"))
		return
	}
	head = head[:n]
	switch {
	case bytes.HasPrefix(head, []byte("#!")):
		c.Script = true
		c.script(head)
	case bytes.HasPrefix(head, []byte(elf.ELFMAG)):
		c.program(f)
	case bytes.HasPrefix(head, []byte("\xef\xbb\xbf#!")):
		c.fail("format", "a byte order mark is before its #!, so that the kernel does not start it",
			finding.Author.Should("save it as UTF-8 without a byte order mark"))
	default:
		c.fail("format", "it is neither a script (#!) nor an ELF program: the kernel does not start it",
			finding.Author.Should("begin it with #!/bin/sh"))
	}
}

// mode checks the mode bits. What this process may do says nothing, because root may read every
// file.
func (c *check) mode(m os.FileMode) {
	const executable, owner = 0o111, 0o500
	next := finding.Administrator.Should("chmod 0755")
	switch {
	case m&executable == 0:
		c.fail("file", fmt.Sprintf("its mode is %04o: it may not be executed", m.Perm()), next)
	case m&owner != owner:
		c.warn("file", fmt.Sprintf("its mode is %04o: its owner may not read and execute it, which root can only by "+
			"privileges that a host may not have", m.Perm()), next)
	}
	if m&(os.ModeSetuid|os.ModeSetgid) != 0 {
		c.warn("file", "it has the setuid or setgid bit, which an installed driver has not", next)
	}
}

// script checks the first line of a script, and whether the tools that it names exist.
func (c *check) script(head []byte) {
	line, _, whole := bytes.Cut(head[2:], []byte("\n"))
	words := strings.Fields(string(line))
	begin := finding.Author.Should("begin it with #!/bin/sh")
	switch {
	case bytes.HasSuffix(line, []byte("\r")):
		c.fail("format", "its first line ends with a carriage return (CRLF), so that no interpreter is found",
			finding.Author.Should("save it with line ends of Unix"))
		return
	case !whole || len(line)+2 > maxInterpreter || len(words) == 0:
		c.fail("format", "its first line does not name an interpreter that the kernel could read", begin)
		return
	case !filepath.IsAbs(words[0]):
		c.fail("format", fmt.Sprintf("its interpreter %q is not an absolute path", words[0]), begin)
		return
	}
	c.interpreter(words)
	c.tools(head)
}

// interpreted returns the interpreter in the words of a first line: env is given it after flags and
// variables.
func interpreted(words []string) string {
	if filepath.Base(words[0]) != "env" {
		return words[0]
	}
	for _, word := range words[1:] {
		if !strings.HasPrefix(word, "-") && !strings.Contains(word, "=") {
			return word
		}
	}
	return words[0]
}

func (c *check) interpreter(words []string) {
	interpreter := interpreted(words)
	if c.start {
		for _, program := range []string{words[0], interpreter} {
			if !isInPath(program) {
				c.fail("interpreter", "its interpreter "+program+" is not on this host",
					finding.Administrator.Should("install it, or let the author write the driver for /bin/sh"))
				return
			}
		}
	}
	c.pass("format", "a script for "+interpreter)
}

// program checks whether an ELF binary is for this machine, and whether its dynamic loader exists.
func (c *check) program(f *os.File) {
	e, err := elf.NewFile(f)
	if err != nil {
		c.fail("format", "its ELF header is broken: "+err.Error(), finding.Author.Should("build it again"))
		return
	}
	if want := machine(runtime.GOARCH); want != elf.EM_NONE && e.Machine != want {
		c.fail("format", fmt.Sprintf("it is for %s, this host is %s", e.Machine, want),
			finding.Author.Should("build it for "+runtime.GOARCH))
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
		c.pass("format", "a static program for "+runtime.GOARCH)
		return
	}
	if _, err := os.Stat(loader); c.start && err != nil {
		c.fail("interpreter", "its loader "+loader+" is not on this host", finding.Author.Should("link it statically"))
		return
	}
	c.pass("format", "a program for "+runtime.GOARCH+", started by "+plain(loader))
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
		c.warn("tools", "it names programs that are not on this host: "+strings.Join(missing, ", "),
			finding.Administrator.Should("install them"))
		return
	}
	c.pass("tools", "the programs that it names are on this host, as far as they are known")
}

// isInPath says whether a program is in the PATH that hosts give to drivers.
func isInPath(name string) bool {
	if filepath.IsAbs(name) {
		return Executable(name) == nil
	}
	for dir := range strings.SplitSeq(driver.SearchPath, ":") {
		if Executable(filepath.Join(dir, name)) == nil {
			return true
		}
	}
	return false
}

// Executable fails unless there is a regular file at the path with an execute bit set.
func Executable(path string) error {
	info, err := os.Stat(path)
	if err == nil && (!info.Mode().IsRegular() || info.Mode()&0o111 == 0) {
		err = exec.ErrNotFound
	}
	return err
}

// init starts the driver once. Unlike a host, it also checks what was printed beside the answer.
func (c *check) init(ctx context.Context) {
	r := c.run(ctx, decide.OpInit)
	if r.err != nil {
		c.fail("init", r.err.Error(), c.byHand())
		return
	}
	answer, err := r.call.Read()
	switch {
	case err != nil:
		c.fail("init", fmt.Sprintf("%v; %s", err, r.call.Quote(plain)), c.byHand())
		return
	case answer.Status != decide.Success:
		c.fail("init", "init answers "+string(answer.Status)+": "+answer.Message,
			finding.Administrator.Should("put right what it says"))
		return
	}
	c.Capabilities = &answer.Capabilities
	for _, f := range append(decide.JudgeForm([]decide.Call{r.call}), decide.JudgeCapabilities(r.call)) {
		f.Message = plain(f.Message)
		c.Findings = append(c.Findings, f)
	}
	said := fmt.Sprintf("answers in %d ms: %s", r.took.Milliseconds(), answer.Capabilities.Words())
	if r.took > slowInit {
		c.warn("init", said, finding.Author.Should("do nothing in init but answer: it runs whenever the file changes"))
		return
	}
	c.pass("init", said)
}

func (c *check) byHand() string {
	return finding.Author.Should("run it manually: " + filepath.Base(c.path) + " init")
}

// result is the result of starting a driver.
type result struct {
	call           decide.Call
	stdout, stderr Output
	took           time.Duration
	err            error
}

func (c *check) run(ctx context.Context, op decide.Operation, args ...string) *result {
	ctx, cancel := context.WithTimeout(ctx, initLimit)
	defer cancel()
	r := &result{}
	err := driver.WhenClosed(busyTries, func() error { return c.command(ctx, r, op, args) })
	r.call = decide.Call{Op: op, Stdout: r.stdout.Kept, Stderr: r.stderr.Kept}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		r.err = fmt.Errorf("%s did not end within %v", op, initLimit)
	case errors.Is(err, exec.ErrWaitDelay):
		r.err = fmt.Errorf("%s ended, but a process that it left behind keeps its output open", op)
	case errors.As(err, &exit):
		r.call.Exit = exit.ExitCode()
	case err != nil:
		r.err = fmt.Errorf("start it: %w", err)
	}
	return r
}

// command starts the driver and waits until it has ended.
func (c *check) command(ctx context.Context, r *result, op decide.Operation, args []string) error {
	cmd := Command(ctx, c.path, op, args...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &r.stdout, &r.stderr, drainTimeout
	began := time.Now()
	err := cmd.Run()
	r.took = time.Since(began)
	return err
}

// Command returns a start of a driver as a host makes it: in a session of its own, which is killed when ctx ends, and
// with an environment that inherits nothing.
func Command(ctx context.Context, path string, op decide.Operation, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, append([]string{string(op)}, args...)...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = "/", driver.Environment(), &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// Output keeps the first bytes that are written to it and drops the rest.
type Output struct{ Kept []byte }

// Write never fails.
func (o *Output) Write(p []byte) (int, error) {
	const most = 1 << 20
	o.Kept = append(o.Kept, p[:min(len(p), most-len(o.Kept))]...)
	return len(p), nil
}
