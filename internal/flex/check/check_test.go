package check

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/workshop/finding"
)

// wrote writes a driver.
func wrote(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "demo")
	if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
	return path
}

// said returns the findings that are no pass, as one text.
func said(all []finding.Finding) string {
	var lines []string
	for _, f := range all {
		if f.Level != finding.Pass {
			person, _, _ := strings.Cut(f.Next, ":")
			lines = append(lines, string(f.Level)+" "+f.Check+": "+f.Message+"; "+person)
		}
	}
	return strings.Join(lines, "\n")
}

// program returns the header of an ELF program.
func program(machine elf.Machine, loader string) string {
	var b bytes.Buffer
	const header, entry = 64, 56
	h := elf.Header64{
		Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: 1, Phoff: header,
		Ehsize: header, Phentsize: entry, Phnum: 1,
	}
	copy(h.Ident[:], elf.ELFMAG+"\x02\x01\x01")
	p := elf.Prog64{Type: uint32(elf.PT_INTERP), Off: header + entry, Filesz: uint64(len(loader))}
	if loader == "" {
		p.Type = uint32(elf.PT_NULL)
	}
	for _, part := range []any{h, p, []byte(loader)} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			panic(err)
		}
	}
	return b.String()
}

const works = "#!/bin/sh\necho '{\"status\":\"Success\",\"capabilities\":{\"attach\":false}}'\n"

// TestFile: what keeps the kernel from starting a file is reported with its cause and with who has to act.
func TestFile(t *testing.T) {
	t.Parallel()
	foreign := elf.EM_S390
	if machine(runtime.GOARCH) == foreign {
		foreign = elf.EM_PPC64
	}
	own := machine(runtime.GOARCH)
	for _, c := range []struct {
		name, text string
		mode       os.FileMode
		want       string
	}{
		{"good", works, 0o755, ""},
		{"root's only", works, 0o700, ""},
		{"nobody's", works, 0o644, "fail file: its mode is 0644: it may not be executed; administrator"},
		{"not its owner's", works, 0o655, `warn file: its mode is 0655: its owner may not read and execute it, which root can only by privileges that a host may not have; administrator`},
		{"unreadable", works, 0o311, `warn file: its mode is 0311: its owner may not read and execute it, which root can only by privileges that a host may not have; administrator`},
		{"setuid", works, 0o755 | os.ModeSetuid, `warn file: it has the setuid or setgid bit, which an installed driver has not; administrator`},
		{"empty", "", 0o755, "fail file: it has 0 bytes; administrator"},
		{"text", "echo\n", 0o755, `fail format: it is neither a script (#!) nor an ELF program: the kernel does not start it; driver's author`},
		{"byte order mark", "\xef\xbb\xbf" + works, 0o755, `fail format: a byte order mark is before its #!, so that the kernel does not start it; driver's author`},
		{"windows", "#!/bin/sh\r\necho\r\n", 0o755, `fail format: its first line ends with a carriage return (CRLF), so that no interpreter is found; driver's author`},
		{"windows, with a flag", "#!/bin/sh -e\r\n", 0o755, `fail format: its first line ends with a carriage return (CRLF), so that no interpreter is found; driver's author`},
		{"no interpreter", "#!\n", 0o755, `fail format: its first line does not name an interpreter that the kernel could read; driver's author`},
		{"relative", "#!sh\n", 0o755, "fail format: its interpreter \"sh\" is not an absolute path; driver's author"},
		{"missing interpreter", "#!/opt/none/python9\n", 0o755, `fail interpreter: its interpreter /opt/none/python9 is not on this host; administrator`},
		{"missing for env", "#!/usr/bin/env -S A=1 python9 -u\n", 0o755, `fail interpreter: its interpreter python9 is not on this host; administrator`},
		{"env", "#!/usr/bin/env sh\n", 0o755, ""},
		{"missing tool", "#!/bin/sh\nmount.nothing x y\n", 0o755, `warn tools: it names programs that are not on this host: mount.nothing; administrator`},
		{"static program", program(own, ""), 0o755, ""},
		{`program for another machine`, program(foreign, ""), 0o755, "fail format: it is for " + foreign.String() + ", this host is " + own.String() + "; driver's author"},
		{"no loader", program(own, "/lib/none.so\x00"), 0o755, `fail interpreter: its loader /lib/none.so is not on this host; driver's author`},
		{"broken program", "\x7fELF nothing more", 0o755, `fail format: its ELF header is broken: bad magic number '[127 69 76 70]' in record at byte 0x0; driver's author`},
	} {
		all := File(wrote(t, c.text, c.mode))
		got := said(all)
		if c.name == "broken program" {
			got, c.want = strings.SplitAfter(got, "broken: ")[0], strings.SplitAfter(c.want, "broken: ")[0]
		}
		if got != c.want {
			t.Errorf("%s: found\n%s\nwant\n%s", c.name, got, c.want)
		}
		for _, f := range all {
			if (f.Level == finding.Fail) != slices.Equal(f.Breaks, decide.Hosts()) {
				t.Errorf("%s: %+v", c.name, f)
			}
		}
	}
	for _, path := range []string{filepath.Join(t.TempDir(), "none"), t.TempDir()} {
		if got := said(File(path)); !strings.HasPrefix(got, "fail file: ") {
			t.Errorf("%s: %s", path, got)
		}
	}
}

// TestDriver: init is called once, and what it says is shown as far as it is printable.
func TestDriver(t *testing.T) {
	t.Parallel()
	name := decide.Name{Vendor: "example.com", Driver: "demo"}
	for _, c := range []struct {
		name, script, want string
		start              bool
	}{
		{"good", works, "", true},
		{
			"no JSON", "#!/bin/sh\nprintf 'Usage:\\033[1m demo\\n'; exit 1\n",
			"fail init: the driver printed no answer (exit code 1); it printed \"Usage: [1m demo\"; driver's author", true,
		},
		{
			"silence", "#!/bin/sh\n",
			"fail init: the driver printed no answer (exit code 0); it printed nothing; driver's author", true,
		},
		{"refusal", "#!/bin/sh\nprintf '%s\\n' '{\"status\":\"Failure\",\"message\":\"no\\nserver\"}'; exit 1\n", `fail init: init answers Failure: no server; administrator`, true},
		{"not called", "#!/bin/sh\nexit 1\n", "", false},
		{"not startable", "#!/bin/sh\r\n", `fail format: its first line ends with a carriage return (CRLF), so that no interpreter is found; driver's author`, true},
	} {
		got := Driver(t.Context(), name, wrote(t, c.script, 0o755), c.start)
		if said(got.Findings) != c.want {
			t.Errorf("%s: found\n%s\nwant\n%s", c.name, said(got.Findings), c.want)
		}
		if (got.Capabilities != nil) != (c.name == "good") || !got.Script {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

// TestUnknown: the operation that does not exist has an argument at which nothing can be mounted.
func TestUnknown(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		`echo '{"status":"Not supported"}'; exit 1`: "",
		`echo '{"status":"Success"}'`:               "warn unknown-operation: an operation that does not exist succeeds; driver's author",
		`mkdir -p "$2" 2>/dev/null || echo "{\"status\":\"Not supported\"}"; [ "$1 $2" = "volplanedoctor /dev/null/nothing" ] && exit 1`: "",
		`kill -9 $$`: "warn unknown-operation: an operation that does not exist gets no answer; driver's author",
	} {
		if got := said([]finding.Finding{Unknown(t.Context(), wrote(t, "#!/bin/sh\n"+script+"\n", 0o755))}); got != want {
			t.Errorf("%s: %s, want %s", script, got, want)
		}
	}
	got := said([]finding.Finding{Unknown(t.Context(), wrote(t, "text", 0o755))})
	if !strings.Contains(got, "start it: ") {
		t.Errorf("what cannot be started: %s", got)
	}
}
