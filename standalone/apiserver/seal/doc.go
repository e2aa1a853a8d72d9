// Package seal keeps Secrets encrypted in etcd with Kubernetes' own providers and
// configuration format. It creates the key, rewrites Secrets that are unencrypted or
// encrypted with an older key before the API server serves, and refuses a start if
// some Secrets cannot be decrypted.
package seal
