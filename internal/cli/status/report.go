package status

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/decide/diskspace"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/survey"
	"volplane.dev/volplane/internal/volume"
)

const (
	// oldBackup is the age from which the newest backup is a problem. Backups are made daily unless
	// configured otherwise.
	oldBackup = 72 * time.Hour
	// expiresSoon is how long before its end a certificate is a problem; one with a short life becomes one at a tenth
	// of it.
	expiresSoon = 30 * 24 * time.Hour
	// certificateTime limits the question for the server's certificate.
	certificateTime = 5 * time.Second
)

// statusReport is the output of 'volplane status' for programs.
type statusReport struct {
	Server  string `json:"server"`
	Version string `json:"version"`
	// Healthy is false if there are problems; then the exit code is 2.
	Healthy  bool      `json:"healthy"`
	Problems []problem `json:"problems"`
	// Waiting is the number of causes for which something waits, without any action being needed.
	Waiting int          `json:"waiting"`
	Nodes   []nodeReport `json:"nodes"`
	// Claims, Volumes and Attachments are numbers by phase.
	Claims      map[string]int `json:"claims"`
	Volumes     map[string]int `json:"volumes"`
	Attachments map[string]int `json:"attachments"`
	// OpenIntents is the number of volumes whose creation has no known outcome yet.
	OpenIntents int `json:"openIntents"`
	// Room has the space of database and disk, and the time of the newest backup; nil if the API server does not
	// report it.
	Room         *diskspace.Report `json:"room,omitempty"`
	Certificates []validity        `json:"certificates"`
}

// problem is something that needs action.
type problem struct {
	Subject string       `json:"subject"`
	Reason  string       `json:"reason"`
	Message string       `json:"message"`
	Next    volume.Actor `json:"next,omitzero"`
	Actor   shell.Actor  `json:"actor,omitzero"`
}

// problemOf returns a problem; next is who has to act.
func problemOf(subject, reason, message string, next volume.Actor) problem {
	return problem{subject, reason, message, next, shell.Actor(next)}
}

type nodeReport struct {
	Name     string `json:"name"`
	Ready    bool   `json:"ready"`
	Attached int    `json:"attached"`
	InUse    int    `json:"inUse"`
	Drivers  string `json:"drivers"`
}

// validity is how long a certificate is valid.
type validity struct {
	// Name says whose it is: the server's, the client's or that of the authority.
	Name    string    `json:"name"`
	Begins  time.Time `json:"begins"`
	Expires time.Time `json:"expires"`
}

// reportOf judges what was read.
func reportOf(told survey.Summary, space *diskspace.Report, certificates []validity) statusReport {
	r := statusReport{
		Room: space, Certificates: certificates, OpenIntents: told.Unresolved.Number, Problems: []problem{},
		Claims: told.Claims, Volumes: told.Volumes, Attachments: told.Attachments, Nodes: []nodeReport{},
	}
	var oldest time.Time
	for _, n := range told.Nodes {
		if oldest.IsZero() || n.Created.Before(oldest) {
			oldest = n.Created
		}
		r.Nodes = append(r.Nodes, nodeReport{
			Name: n.Name, Ready: n.Ready, Attached: n.Attached, InUse: n.InUse, Drivers: driversOf(n),
		})
	}
	for _, c := range told.Causes {
		if c.State != chain.Problem {
			r.Waiting++
			continue
		}
		r.Problems = append(r.Problems,
			problemOf(c.Subject, string(c.Because.Reason), c.Because.Message, c.Because.Next))
	}
	r.Problems = append(r.Problems, r.ageing(told.Now, oldest)...)
	r.Healthy = len(r.Problems) == 0
	return r
}

// ageing returns what becomes a problem by time alone. Nodes that are silent are among the causes; certificates near
// their end and backups that are too old are not. oldest is the creation of the oldest Node; zero if there is none.
func (r *statusReport) ageing(now, oldest time.Time) []problem {
	var out []problem
	for _, c := range r.Certificates {
		if left := c.Expires.Sub(now); left < min(expiresSoon, c.Expires.Sub(c.Begins)/10) {
			out = append(out, problemOf("certificate/"+c.Name, "CertificateExpires", fmt.Sprintf(
				"the certificate of the %s is valid until %s: renew it; volplane renews its own at each start", c.Name,
				chain.Moment(c.Expires)), volume.User()))
		}
	}
	if says := r.backupOld(now, oldest); says != "" {
		out = append(out, problemOf("control plane", "BackupOld", says+"; 'volplane backup' creates one", volume.User()))
	}
	return out
}

// backupOld says that the newest backup is too old, or that a control plane that is as old has none though it should.
func (r *statusReport) backupOld(now, oldest time.Time) string {
	switch {
	case r.Room == nil:
	case r.Room.Backup != nil && now.Sub(*r.Room.Backup) > oldBackup:
		return "the newest backup is of " + chain.Moment(*r.Room.Backup)
	case r.Room.Backup == nil && !r.Room.NoBackups && !oldest.IsZero() && now.Sub(oldest) > oldBackup:
		return "no backup was ever created"
	}
	return ""
}

// validities returns the certificates of the client, of the API server and of its authority, as far as they can be
// read.
func validities(ctx context.Context, config *rest.Config) []validity {
	config = rest.CopyConfig(config)
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil
	}
	out := append(fromPEM("client", config.CertData), fromPEM("authority", config.CAData)...)
	config.Timeout = certificateTime
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return out
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/version", nil)
	if err != nil {
		return out
	}
	answer, err := client.Do(q)
	if err != nil {
		return out
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 1<<16))
	_ = answer.Body.Close()
	return append(out, ofConnection(answer.TLS)...)
}

func ofConnection(s *tls.ConnectionState) []validity {
	if s == nil || len(s.PeerCertificates) == 0 {
		return nil
	}
	return []validity{certificateOf("server", s.PeerCertificates[0])}
}

// fromPEM returns the first certificate in a file, without its key; none if there is none.
func fromPEM(name string, data []byte) []validity {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil
	}
	return []validity{certificateOf(name, c)}
}

func certificateOf(name string, c *x509.Certificate) validity {
	return validity{Name: name, Begins: c.NotBefore, Expires: c.NotAfter}
}

// printAgeing prints the certificate that expires first, and the newest backup.
func printAgeing(s *shell.Shell, r statusReport) {
	if len(r.Certificates) > 0 {
		first := slices.MinFunc(r.Certificates, func(a, b validity) int { return a.Expires.Compare(b.Expires) })
		fmt.Fprintf(s.Out, "certificate  of the %s, valid until %s\n", first.Name, chain.Moment(first.Expires))
	}
	if r.Room != nil {
		made := "none yet"
		if r.Room.NoBackups {
			made = "none; they are turned off"
		}
		if r.Room.Backup != nil {
			made = chain.Moment(*r.Room.Backup)
		}
		fmt.Fprintf(s.Out, "backup       %s\n", made)
	}
}

// printProblems prints what needs action.
func printProblems(s *shell.Shell, r statusReport) {
	if r.Healthy {
		return
	}
	fmt.Fprintf(s.Out, "\nProblems: %d. See: volplane why -A\n", len(r.Problems))
	for _, p := range r.Problems {
		fmt.Fprintf(s.Out, "  %s  %s  %s\n", shell.PlainLine(p.Subject), p.Reason, shell.PlainLine(p.Message))
	}
}
