package kubelets

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// nodeCall is a call of a driver by the kubelet or the node agent.
type nodeCall struct {
	method, volume string
	request        proto.Message
	// found is the content of the target before it was unpublished.
	found string
}

// callLog keeps the calls of the drivers of one node.
type callLog struct {
	mu  sync.Mutex
	all []nodeCall
}

// note records a call, except those of the attacher. It is a driver's Before.
func (l *callLog) note(_ context.Context, method string, r proto.Message) error {
	if strings.HasPrefix(method, "ControllerPublish") || strings.HasPrefix(method, "ControllerUnpublish") {
		return nil
	}
	c := nodeCall{method: method, request: proto.Clone(r)}
	if id, ok := r.(interface{ GetVolumeId() string }); ok {
		c.volume = id.GetVolumeId()
	}
	if target, ok := r.(interface{ GetTargetPath() string }); ok && method == "NodeUnpublishVolume" {
		c.found = describe(target.GetTargetPath())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, c)
	return nil
}

// describe returns what Pods would see of a path.
func describe(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return "nothing"
	}
	var fs unix.Statfs_t
	var st unix.Stat_t
	if unix.Statfs(path, &fs) != nil || unix.Stat(path, &st) != nil {
		return "something else"
	}
	return fmt.Sprintf("%v of group %d, read only %v", info.Mode(), st.Gid, fs.Flags&unix.ST_RDONLY != 0)
}

// lines returns the calls in words that are the same for every node, by volume and in order; calls of the same kind
// that follow each other are for several Pods, in any order. names replaces words that differ between nodes.
func (l *callLog) lines(names *strings.Replacer) ([]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	count, out := map[string]int{}, []string(nil)
	last := map[string]string{}
	for _, c := range l.all {
		if last[c.volume] != c.method {
			count[c.volume]++
		}
		last[c.volume] = c.method
		text, err := requestText(c.request)
		if err != nil {
			return nil, err
		}
		line := fmt.Sprintf("%s: %d %s %s", c.volume, count[c.volume], c.method, text)
		if c.found != "" {
			line += " found " + c.found
		}
		out = append(out, names.Replace(line))
	}
	return counted(out), nil
}

// counted adds the number to lines that occur more than once.
func counted(lines []string) []string {
	times := map[string]int{}
	for _, l := range lines {
		times[l]++
	}
	var out []string
	for _, l := range slices.Sorted(maps.Keys(times)) {
		if n := times[l]; n > 1 {
			l += fmt.Sprintf(" (%d times)", n)
		}
		out = append(out, l)
	}
	return out
}

// requestText returns a request with its fields in order, and only the purpose of tokens.
func requestText(r proto.Message) (string, error) {
	data, err := protojson.Marshal(r)
	if err != nil {
		return "", err
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		return "", err
	}
	for _, of := range []string{"volumeContext", "secrets"} {
		values, _ := fields[of].(map[string]any)
		for k, v := range values {
			if text, ok := v.(string); ok && strings.HasSuffix(k, "serviceAccount.tokens") {
				if values[k], err = tokensText(text); err != nil {
					return "", err
				}
			}
		}
	}
	data, err = json.Marshal(fields)
	return string(data), err
}

// tokensText returns the audiences of tokens, and the objects to which they are bound.
func tokensText(text string) (string, error) {
	var tokens map[string]struct{ Token, ExpirationTimestamp string }
	if err := json.Unmarshal([]byte(text), &tokens); err != nil {
		return "", err
	}
	var out []string
	for audience, t := range tokens {
		parts := strings.Split(t.Token, ".")
		if len(parts) != 3 {
			return "", fmt.Errorf("no token: %q", t.Token)
		}
		payload, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err != nil {
			return "", err
		}
		var claims struct {
			Aud        []string
			Exp, Iat   int64
			Sub        string
			Kubernetes struct {
				Pod struct{ Name string }
			} `json:"kubernetes.io"`
		}
		if err := json.Unmarshal(payload, &claims); err != nil {
			return "", err
		}
		out = append(out, fmt.Sprintf("%s: for %v of %s, pod %s, %ds, ends %v", audience, claims.Aud, claims.Sub,
			claims.Kubernetes.Pod.Name, claims.Exp-claims.Iat, t.ExpirationTimestamp != ""))
	}
	slices.Sort(out)
	return strings.Join(out, "; "), nil
}

// hash is the part of paths derived from a volume's id, and of ids derived from a Pod's inline volume.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
