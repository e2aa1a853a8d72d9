package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/flex/check"
	"volplane.dev/volplane/internal/flex/host"
	"volplane.dev/volplane/internal/workshop/finding"
)

// Errors that callers distinguish.
var (
	// ErrRefused says that the driver did not pass its checks; nothing has
	// changed.
	ErrRefused = errors.New("it does not pass its checks")
	// ErrOther says that another version is installed; nothing has changed.
	ErrOther = errors.New("another version is installed")
	// ErrAbsent says that the driver is not installed.
	ErrAbsent = errors.New("it is not installed")
	// ErrNoPrevious says that there is no version to go back to.
	ErrNoPrevious = errors.New("no previous version exists")
	// ErrInUse says that volumes of the driver are mounted; nothing has changed.
	ErrInUse = errors.New("it is in use")
)

// Values of Report.Deed.
const (
	Installed  = "installed"
	Upgraded   = "upgraded"
	Unchanged  = "unchanged"
	RolledBack = "rolled back"
	Removed    = "uninstalled"
)

// Report is the result of an installation.
type Report struct {
	Name      string    `json:"name"`
	Deed      string    `json:"deed"`
	Directory Directory `json:"directory"`
	Path      string    `json:"path"`
	// Hash is the hash of the installed version, Previous that of the version that Rollback would
	// restore.
	Hash     string `json:"hash,omitempty"`
	Previous string `json:"previous,omitempty"`
	// Payload is the directory of the files of a driver with more than one file.
	Payload      string               `json:"payload,omitempty"`
	Capabilities *decide.Capabilities `json:"capabilities,omitempty"`
	Findings     []finding.Finding    `json:"findings,omitempty"`
	// Loaded is the state of the driver in the running bridge; nil if none runs.
	Loaded *host.State `json:"loaded,omitempty"`
}

func (p *place) install(ctx context.Context, c change, r *Report) error {
	s, err := newStage(c)
	if err != nil {
		return err
	}
	defer s.close()
	if r.Payload, err = s.fill(c); err != nil {
		return err
	}
	checked := check.Driver(ctx, c.name, s.exe, !c.NoInit)
	r.Findings, r.Capabilities = checked.Findings, checked.Capabilities
	if finding.Worst(r.Findings) == finding.Fail && !c.Force {
		return fmt.Errorf("%w: %s", ErrRefused, failed(r.Findings))
	}
	if checked.Capabilities != nil {
		r.Findings = append(r.Findings, check.Unknown(ctx, s.exe))
	}
	if c.directory.Host == HostKubelet && checked.Script && checked.Capabilities != nil && checked.Capabilities.Attach {
		r.Findings = append(r.Findings, finding.Finding{
			Check: "control-plane", Level: finding.Warn,
			Message: "it attaches, which kube-controller-manager calls it for; the usual image of that has no shell to " +
				"run a script",
			Next: finding.Administrator.Should("serve it with 'volplane flex bridge'"),
		})
	}
	if err := p.replace(ctx, c, s, r); err != nil {
		return err
	}
	return p.previous(r)
}

// failed returns the messages of failed checks as one text.
func failed(all []finding.Finding) string {
	var words []string
	for _, f := range all {
		if f.Level == finding.Fail {
			words = append(words, f.Check+": "+f.Message)
		}
	}
	return strings.Join(words, "; ")
}

// replace installs the staged driver, unless it is installed already.
func (p *place) replace(ctx context.Context, c change, s *stage, r *Report) error {
	now, err := hashOf(p.exe)
	if err != nil {
		return err
	}
	next, err := hashOf(s.exe)
	if err != nil {
		return err
	}
	switch {
	case now == "" && !c.absent:
		return fmt.Errorf("%w in %s", ErrAbsent, p.dir)
	case now != "" && now != next && !c.upgrade:
		return fmt.Errorf("%w: %s has %s, this one is %s", ErrOther, p.exe, now, next)
	}
	r.Hash = next
	switch {
	case now == next && p.isIntact():
		r.Deed = Unchanged
		return nil
	case now == "" || now == next:
		r.Deed = Installed
	default:
		r.Deed = Upgraded
		r.Findings = append(r.Findings, p.checkAttach(ctx, c, r.Capabilities)...)
	}
	return p.put(s.exe)
}

// isIntact says whether the installed driver has the right owner and mode.
func (p *place) isIntact() bool {
	info, err := os.Lstat(p.exe)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o755 ||
		info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		return false
	}
	return host.OwnedBy(p.exe, info).Others() == "" || os.Geteuid() != 0
}

func (p *place) previous(r *Report) (err error) {
	r.Previous, err = hashOf(p.beside("previous"))
	return err
}

// checkAttach warns if the new version attaches and the old one does not, or the reverse, while
// volumes are mounted, which were attached, or not, by the old one.
func (p *place) checkAttach(ctx context.Context, c change, next *decide.Capabilities) []finding.Finding {
	if next == nil || c.NoInit {
		return nil
	}
	if why, err := host.Refused(p.dir, p.name.Dir()); err != nil || why.Reason != "" {
		return nil // users other than root can change the installed driver: it is not started
	}
	before := check.Driver(ctx, c.name, p.exe, true).Capabilities
	if before == nil || before.Attach == next.Attach {
		return nil
	}
	used, err := inUse(c.name)
	if err != nil || len(used) == 0 {
		return nil
	}
	was, is := "attaches", "does not"
	if next.Attach {
		was, is = "does not attach", "does"
	}
	return []finding.Finding{{
		Check: "attach", Level: finding.Warn, Path: used[0],
		Message: fmt.Sprintf("the version before %s, this one %s, and %d mounts of its volumes are there", was,
			is, len(used)),
		Next: finding.Administrator.Should("unmount its volumes, or roll back"),
	}}
}

func (p *place) rollback(ctx context.Context, c change, r *Report) error {
	if err := p.hashes(r); err != nil {
		return err
	}
	switch {
	case r.Hash == "":
		return fmt.Errorf("%w in %s", ErrAbsent, p.dir)
	case r.Previous == "":
		return fmt.Errorf("%w in %s", ErrNoPrevious, p.dir)
	}
	s, err := newStage(c)
	if err != nil {
		return err
	}
	defer s.close()
	if err := p.checkPreviousOwner(); err != nil {
		return err
	}
	if err := copyFile(p.beside("previous"), s.exe, 0o700); err != nil {
		return err
	}
	checked := check.Driver(ctx, c.name, s.exe, !c.NoInit)
	r.Findings, r.Capabilities = checked.Findings, checked.Capabilities
	if finding.Worst(r.Findings) == finding.Fail && !c.Force {
		return fmt.Errorf("%w: previous version %s: %s", ErrRefused, r.Previous, failed(r.Findings))
	}
	r.Findings = append(r.Findings, p.checkAttach(ctx, c, r.Capabilities)...)
	// The version that was checked is installed, with the right owner, mode and label.
	if err := errors.Join(p.write(s.exe, p.beside("new")), p.rename(p.beside("new"), p.beside("previous"))); err != nil {
		return err
	}
	if err := p.swap(); err != nil {
		return err
	}
	r.Deed = RolledBack
	return p.hashes(r)
}

// checkPreviousOwner refuses a previous version that users other than root can change: it was not
// put there by an installer, and would be started as root.
func (p *place) checkPreviousOwner() error {
	info, err := os.Lstat(p.beside("previous"))
	if err != nil {
		return fmt.Errorf("read the previous version: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: the previous version is a %s", ErrRefused, kind(info))
	}
	if why := host.OwnedBy(p.beside("previous"), info).Others(); why != "" && os.Geteuid() == 0 {
		return fmt.Errorf("%w: the previous version %s: install it from a file that is root's", ErrRefused, why)
	}
	return nil
}

func (p *place) hashes(r *Report) (err error) {
	if r.Hash, err = hashOf(p.exe); err != nil {
		return err
	}
	return p.previous(r)
}

func (p *place) uninstall(c change, r *Report) error {
	if _, err := os.Lstat(p.home); errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("%w in %s", ErrAbsent, p.dir), remove(p.beside("previous")))
	}
	use, err := useOf(c)
	if err != nil {
		return err
	}
	if use != "" && !c.Force {
		return fmt.Errorf("%w: %s", ErrInUse, use)
	}
	if use != "" {
		if err := p.retain(r, use); err != nil {
			return err
		}
	}
	// The file is removed first: if the directory is renamed away, a kubelet does not notice it and
	// retries the driver's init forever.
	if err := errors.Join(remove(p.exe), durable.Sync(p.home)); err != nil {
		return err
	}
	if err := os.Remove(p.home); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the driver is gone, its directory is not: look what else is in it: %w", err)
	}
	r.Deed = Removed
	return errors.Join(remove(p.beside("previous")), p.dropPayload(c, use != ""), durable.Sync(p.dir))
}

// useOf describes the use of a driver; "" if it is not in use.
func useOf(c change) (string, error) {
	used, err := inUse(c.name)
	switch n := heldVolumes(c.RootDir, c.name); {
	case err != nil:
		return "", err
	case len(used) > 0:
		return "its volumes are mounted at " + firstOf(used), nil
	case n > 0:
		return fmt.Sprintf("the bridge takes care of %d of its volumes", n), nil
	}
	return "", nil
}

// retain keeps a copy of the executable that can unmount the mounted volumes.
func (p *place) retain(r *Report, use string) error {
	copied := p.beside("removed")
	if err := remove(copied); err != nil {
		return err
	}
	if err := os.Link(p.exe, copied); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep a copy: %w", err)
	}
	r.Findings = append(r.Findings, finding.Finding{
		Check: "in-use", Level: finding.Warn, Path: copied,
		Message: use + "; a copy is kept to unmount them with",
		Next:    finding.Administrator.Should("remove " + copied + " when nothing is mounted any more"),
	})
	return nil
}

// firstOf returns the first few of many as one text.
func firstOf(all []string) string {
	const shown = 3
	if len(all) <= shown {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:shown], ", "), len(all)-shown)
}
