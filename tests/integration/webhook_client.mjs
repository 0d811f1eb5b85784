// Verifies one delivery with three public verifiers, and prints what each made of it as JSON.
import { readFileSync } from "node:fs";
import OpenAI from "openai";
import { validateWebhook } from "replicate";
import { Webhook } from "standardwebhooks";

const { body, headers, secret } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const wrong = `whsec_${Buffer.alloc(32, 7).toString("base64")}`;
const refused = async (verify) => {
  try {
    return (await verify()) === false;
  } catch {
    return true;
  }
};
const parameters = (key) => ({
  id: headers["webhook-id"],
  timestamp: headers["webhook-timestamp"],
  signature: headers["webhook-signature"],
  body,
  secret: key,
});
const openai = new OpenAI({ apiKey: "any" });
console.log(
  JSON.stringify({
    standard: new Webhook(secret).verify(body, headers).type,
    replicate: await validateWebhook(parameters(secret)),
    openai: (await openai.webhooks.unwrap(body, headers, secret)).type,
    refused: [
      await refused(() => new Webhook(wrong).verify(body, headers)),
      await refused(() => validateWebhook(parameters(wrong))),
      await refused(() => openai.webhooks.unwrap(body, headers, wrong)),
    ],
  }),
);
