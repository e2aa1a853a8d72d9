package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/check"
	"volplane.dev/volplane/internal/flex/host"
	"volplane.dev/volplane/internal/workshop/finding"
)

// Lint checks a plugin directory for files that make a host refuse a driver, start what is not a
// driver, or retry something forever. Unless NoInit is set, init of each driver is called. Nothing is
// changed; it may be repeated.
func Lint(ctx context.Context, o Options) (Directory, []finding.Finding, error) {
	d, err := o.find()
	if err != nil && !errors.Is(err, ErrNoDirectory) || d.Path == "" {
		return d, nil, err
	}
	entries, err := os.ReadDir(d.Path)
	if err != nil {
		return d, nil, fmt.Errorf("read plugin directory: %w", err)
	}
	l := &lint{dir: d.Path, start: !o.NoInit, findings: []finding.Finding{}}
	if problem := Problem(d.Path); problem != "" && !strings.Contains(problem, "written to") {
		l.add("directory", finding.Fail, d.Path, problem, Directory{Path: d.Path, Problem: problem}.Advice())
	}
	for _, e := range entries {
		l.entry(ctx, e)
	}
	return d, l.findings, nil
}

type lint struct {
	dir      string
	start    bool
	findings []finding.Finding
}

// add adds a finding about the directory, which is the administrator's.
func (l *lint) add(check string, level finding.Level, path, message, advice string) {
	l.findings = append(l.findings, finding.Finding{
		Check: check, Level: level, Path: path, Message: message, Next: finding.Administrator.Should(advice),
	})
}

// entry checks one entry of the plugin directory.
func (l *lint) entry(ctx context.Context, e fs.DirEntry) {
	path := filepath.Join(l.dir, e.Name())
	info, err := os.Stat(path)
	linked := e.Type()&fs.ModeSymlink != 0
	switch {
	case err != nil:
		l.add("link", finding.Fail, path, "a symbolic link leads nowhere", "remove it")
	case strings.HasPrefix(e.Name(), "."):
		l.hidden(path, e.Name(), info)
	case !info.IsDir():
		l.add("stray", finding.Fail, path,
			fmt.Sprintf("a file that appears here makes a kubelet start %s at every turn", filepath.Join(path, e.Name())),
			"remove it; what begins with a dot is passed over")
	default:
		if linked {
			l.add("link", finding.Warn, path, "hosts see no changes behind a symbolic link, and a kubelet loads it or not, "+
				"depending on when it came", "make it a directory")
		}
		l.driver(ctx, path, e.Name())
	}
}

// hidden checks an entry whose name begins with a dot: hosts ignore such files, but a kubelet does
// not ignore such directories.
func (l *lint) hidden(path, name string, info fs.FileInfo) {
	switch {
	case info.IsDir():
		l.add("dot-directory", finding.Fail, path,
			"a kubelet watches this directory when it starts, and starts what is put into it", "remove it")
	case strings.HasSuffix(name, ".new") || strings.HasSuffix(name, ".keep"):
		l.add("unfinished", finding.Warn, path, "an installation was not finished", "install the driver again")
	case strings.HasSuffix(name, ".removed"):
		l.add("kept", finding.Warn, path, "a driver was removed while it was in use; this copy can unmount its volumes",
			"remove it when nothing of it is mounted")
	}
}

// driver checks the directory of one driver.
func (l *lint) driver(ctx context.Context, path, entry string) {
	if why, err := host.Refused(l.dir, entry); err != nil {
		l.add("refused", finding.Fail, path, err.Error(), "check the disk")
		return
	} else if why.Reason != "" {
		l.add("refused", finding.Fail, path, why.Message, "put it right, or remove it")
		return
	}
	want := decide.ExecutableName(entry)
	files, err := os.ReadDir(path)
	if err != nil {
		l.add("directory", finding.Fail, path, err.Error(), "check the disk")
		return
	}
	if !slices.ContainsFunc(files, func(f fs.DirEntry) bool { return f.Name() == want }) {
		l.add("empty", finding.Fail, path, "it holds no executable "+want, "install the driver, or remove the directory")
		return
	}
	for _, f := range files {
		if f.Name() != want && !strings.HasPrefix(f.Name(), ".") {
			l.add("extra", finding.Warn, filepath.Join(path, f.Name()),
				"each change of a file here makes a kubelet call init again",
				"keep it outside of the plugin directory: volplane flex install NAME DIR does")
		}
	}
	exe := filepath.Join(path, want)
	if info, err := os.Lstat(exe); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		l.add("link", finding.Warn, exe, "hosts do not see when what the symbolic link leads to changes", "make it a file")
	}
	name, err := decide.ParseDir(entry)
	if err != nil {
		l.add("name", finding.Fail, path, err.Error(), "rename it")
		return
	}
	for _, f := range check.Driver(ctx, name, exe, l.start).Findings {
		f.Path = exe
		l.findings = append(l.findings, f)
	}
}
