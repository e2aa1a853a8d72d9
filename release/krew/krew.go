// Package krew writes krew's manifest for the kubectl plugin.
package krew

import (
	"crypto/sha256"
	"encoding/hex"

	"sigs.k8s.io/yaml"
)

// Plugin is the name of the plugin, and Program that of the program which kubectl runs for `kubectl why-volume`.
const (
	Plugin  = "why-volume"
	Program = "kubectl-why_volume"
)

// Archive is an archive with the plugin's program for one platform.
type Archive struct {
	OS, Arch string
	// URI is where it can be loaded from.
	URI string
	// Data is the archive, which has the program at its top.
	Data []byte
}

// Program is the name of the program in the archive.
func (a Archive) Program() string {
	if a.OS == "windows" {
		return Program + ".exe"
	}
	return Program
}

// Manifest is what krew reads.
type Manifest struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
	Spec       Spec     `json:"spec"`
}

// Metadata has the name, which is also that of the file.
type Metadata struct {
	Name string `json:"name"`
}

// Spec describes the plugin and where to get it.
type Spec struct {
	Version     string     `json:"version"`
	Homepage    string     `json:"homepage"`
	Short       string     `json:"shortDescription"`
	Description string     `json:"description"`
	Platforms   []Platform `json:"platforms"`
}

// Platform is an archive for the machines that the selector names.
type Platform struct {
	Selector Selector `json:"selector"`
	URI      string   `json:"uri"`
	SHA256   string   `json:"sha256"`
	Bin      string   `json:"bin"`
	Files    []Copy   `json:"files"`
}

// Selector selects machines.
type Selector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

// Copy is a file of the archive that is installed.
type Copy struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// New returns the manifest of a version with these archives, which have these other files.
func New(version, homepage string, archives []Archive, others ...string) Manifest {
	m := Manifest{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2", Kind: "Plugin",
		Metadata: Metadata{Name: Plugin},
		Spec: Spec{
			Version: version, Homepage: homepage,
			Short: "Explain what a claim, volume or Pod waits for",
			Description: `Explains why a claim is pending, a volume is not attached or a Pod does not start:
the chain from the claim through class, volume and attachment to the mount, the
first link with a problem, and who has to act next. Without an object, it lists
everything in the namespace that waits for storage, by cause. It only reads.
`,
		},
	}
	for _, a := range archives {
		sum := sha256.Sum256(a.Data)
		p := Platform{
			Selector: Selector{MatchLabels: map[string]string{"os": a.OS, "arch": a.Arch}},
			URI:      a.URI, SHA256: hex.EncodeToString(sum[:]), Bin: a.Program(),
		}
		for _, name := range append([]string{p.Bin}, others...) {
			p.Files = append(p.Files, Copy{From: name, To: "."})
		}
		m.Spec.Platforms = append(m.Spec.Platforms, p)
	}
	return m
}

// YAML returns the manifest's file.
func (m Manifest) YAML() ([]byte, error) { return yaml.Marshal(m) }
