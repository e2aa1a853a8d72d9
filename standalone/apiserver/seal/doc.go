// Package seal keeps Secrets encrypted in etcd: it makes the key, encrypts what
// lies in clear or under an older key before the API server serves, and refuses a
// start that could not read all Secrets. What encrypts is Kubernetes' own, and so is
// the form of the file that says how.
package seal
