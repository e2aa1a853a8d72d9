package driverfile

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"

	"volplane.dev/volplane/internal/csi"
)

const (
	// maxProcesses is how many processes a driver has at most: one for each role.
	maxProcesses = 2
	// maxSocket is the length limit of a socket's path in Linux, in bytes.
	maxSocket = 107
)

// mistakes collects what is wrong with a driver.
type mistakes []error

func (m *mistakes) add(field, format string, args ...any) {
	*m = append(*m, fmt.Errorf("%s: "+format, append([]any{field}, args...)...))
}

// Check returns every mistake in a driver, with its field and what to write there. It accesses no
// file: the program need not exist yet. No value of a variable is in the error.
func Check(d Driver) error {
	var m mistakes
	if d.APIVersion != APIVersion {
		m.add("apiVersion", "it is %.40q; write %s", d.APIVersion, APIVersion)
	}
	if d.Kind != Kind {
		m.add("kind", "it is %.40q; write %s", d.Kind, Kind)
	}
	if err := csi.CheckName(d.Name); err != nil {
		m.add("name", "%w", err)
	}
	if d.Class != "" {
		m.object("class", d.Class)
	}
	if _, err := time.Parse(time.RFC3339, d.RestartedAt); d.RestartedAt != "" && err != nil {
		m.add("restartedAt", "%.40q is not a time; write one as 2026-01-31T12:00:00Z", d.RestartedAt)
	}
	if n := len(d.Processes); n == 0 || n > maxProcesses {
		m.add("processes", "there are %d; write one, or one for each role", n)
		return errors.Join(m...)
	}
	m.roles(d.Processes)
	m.processes(d.Processes)
	return errors.Join(m...)
}

// roles wants each role exactly once.
func (m *mistakes) roles(all []Process) {
	owner := map[Role]string{}
	for i, p := range all {
		field := fmt.Sprintf("processes[%d].roles", i)
		if len(p.Roles) == 0 {
			m.add(field, "write [%s, %s], or one of them", RoleController, RoleNode)
		}
		for _, r := range p.Roles {
			if r != RoleController && r != RoleNode {
				m.add(field, "unknown role %.40q; use %s or %s", r, RoleController, RoleNode)
			} else if first := owner[r]; first != "" {
				m.add(field, "%s has the role %s already; write each role once", first, r)
			} else {
				owner[r] = field
			}
		}
	}
	for _, r := range []Role{RoleController, RoleNode} {
		if owner[r] == "" {
			m.add("processes", "none has the role %s; write it to the process whose socket has this service, "+
				"or to the only process if the driver lacks it", r)
		}
	}
}

func (m *mistakes) processes(all []Process) {
	for i, p := range all {
		m.process(fmt.Sprintf("processes[%d]", i), p)
		if i > 0 && p.Socket != "" && p.Socket == all[0].Socket {
			m.add(fmt.Sprintf("processes[%d].socket", i), "processes[0] has the same one; write another, or leave it out")
		}
	}
}

func (m *mistakes) process(field string, p Process) {
	m.socket(field+".socket", p.Socket)
	if len(p.Exec) == 0 {
		m.notStarted(field, p)
		return
	}
	if !filepath.IsAbs(p.Exec[0]) {
		m.add(field+".exec", "the program %.80q is not an absolute path; write one, as /usr/local/bin/plugin", p.Exec[0])
	}
	for i, arg := range p.Exec {
		m.lines(fmt.Sprintf("%s.exec[%d]", field, i), arg, i > 0)
	}
	if p.WorkingDir != "" && !filepath.IsAbs(p.WorkingDir) {
		m.add(field+".workingDir", "%.80q is not an absolute path; write one", p.WorkingDir)
	}
	m.text(field+".workingDir", p.WorkingDir)
	if p.ServiceAccount != "" {
		m.reference(field+".serviceAccount", p.ServiceAccount, "service account")
	}
	m.environment(field, p)
}

// notStarted checks a process that volplane does not run.
func (m *mistakes) notStarted(field string, p Process) {
	if p.Socket == "" {
		m.add(field, "write exec if volplane starts the process, or else its socket")
	}
	if len(p.Env) > 0 || len(p.EnvFromSecret) > 0 || p.WorkingDir != "" || p.ServiceAccount != "" {
		m.add(field, "env, envFromSecret, serviceAccount and workingDir have no effect without exec; remove them")
	}
}

func (m *mistakes) socket(field, path string) {
	switch {
	case path == "":
		return
	case !filepath.IsAbs(path):
		m.add(field, "%.80q is not an absolute path; write one, as /run/x/csi.sock", path)
	case filepath.Clean(path) != path || path == "/":
		m.add(field, "%.80q is not the simplest form of a file's path; write %.80q", path, filepath.Clean(path))
	case len(path) > maxSocket:
		m.add(field, "the path has %d bytes; Linux allows %d", len(path), maxSocket)
	}
	m.text(field, path)
}

var variableForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)

func (m *mistakes) environment(field string, p Process) {
	seen := map[string]bool{}
	variable := func(field, name string) {
		switch {
		case name == VarEndpoint:
			m.add(field, "volplane sets %s; remove it, and write the path to socket", name)
		case name == VarNode, p.ServiceAccount != "" && (name == VarServiceHost || name == VarServicePort):
			m.add(field, "volplane sets %s; remove it", name)
		case !variableForm.MatchString(name):
			m.add(field, "%.80q is not the name of a variable; write letters, digits and underscores", name)
		case seen[name]:
			m.add(field, "the variable %.80q has a value already; write it once", name)
		}
		seen[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(p.Env)) {
		variable(field+".env", name)
		m.lines(fmt.Sprintf("%s.env[%.80q]", field, name), p.Env[name], true)
	}
	for i, v := range p.EnvFromSecret {
		field := fmt.Sprintf("%s.envFromSecret[%d]", field, i)
		variable(field+".name", v.Name)
		m.reference(field+".secret", v.Secret, "Secret")
		if problems := validation.IsConfigMapKey(v.Key); len(problems) > 0 {
			m.add(field+".key", "%.80q is not a key of a Secret: %s", v.Key, problems[0])
		}
	}
}

// reference wants NAMESPACE/NAME of an object.
func (m *mistakes) reference(field, ref, kind string) {
	ns, name, found := strings.Cut(ref, "/")
	if !found {
		m.add(field, "%.80q is no %s; write NAMESPACE/NAME", ref, kind)
		return
	}
	m.object(field, ns)
	m.object(field, name)
}

// object wants the name of an object of the API.
func (m *mistakes) object(field, name string) {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		m.add(field, "%.80q is not a name of an object: %s", name, problems[0])
	}
}

// lines is text for what may have lines and tabs, as the script of a shell does.
func (m *mistakes) lines(field, text string, may bool) {
	if may {
		text = strings.NewReplacer("\n", "", "\t", "").Replace(text)
	}
	m.text(field, text)
}

// text refuses what cannot be passed to a program, or is not written on purpose.
func (m *mistakes) text(field, text string) {
	if !utf8.ValidString(text) {
		m.add(field, "it is not UTF-8")
	} else if strings.ContainsFunc(text, unicode.IsControl) {
		m.add(field, "it has a control character, such as NUL; remove it")
	}
}
