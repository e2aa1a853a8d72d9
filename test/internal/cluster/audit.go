package cluster

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// AuditedCluster starts a cluster, and returns the path of the audit log with the requests of service
// accounts.
func AuditedCluster(t *testing.T) (c *Cluster, log string) {
	t.Helper()
	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.yaml")
	log = filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte(onlyAccounts), 0o600); err != nil {
		t.Fatal(err)
	}
	return Start(t, "--allow-privileged", "--audit-policy-file="+policy, "--audit-log-path="+log), log
}

// onlyAccounts is an audit policy that logs the requests of service accounts.
const onlyAccounts = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
  userGroups: ["system:serviceaccounts"]
- level: None
`

// Request is one in the API server's audit log.
type Request struct {
	Verb, RequestURI string
	User             struct{ Username string }
	ObjectRef        struct{ Resource, Subresource, Namespace, Name string }
	ResponseStatus   struct {
		Code    int
		Message string
	}
}

// Audited returns the requests of an account to the API server.
func (i *Installation) Audited(log, account string) []Request {
	i.T.Helper()
	data, err := os.ReadFile(log)
	i.Must(err)
	var out []Request
	for line := range bytes.Lines(data) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			// The API server is still writing another request.
			break
		}
		var e Request
		i.Must(json.Unmarshal(line, &e))
		if e.User.Username == "system:serviceaccount:"+i.Space+":"+account {
			out = append(out, e)
		}
	}
	return out
}
